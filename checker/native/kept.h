/* What kvsan has put on few objects of the engine's that live long (a block pool, a runner): which pools they
   are, which steps. A look into such an object's dict is some ten cold cache lines, and they are looked at in each step.

   An object is known by its address as long as a weak reference says that it is its own: only for classes of Python, whose
   weak references are cleared (`names.py` says whose are not). What was read holds until `marked` is called. */

#ifndef KVSAN_KEPT_H
#define KVSAN_KEPT_H

#include "common.h"

#define KEPT_OBJECTS 2 /* of each sort: the GPU's block pool and the CPU's */

enum { POOLS_OF, STEPS_OF, KEPT_SORTS };

typedef struct {
    PyObject *objects[KEPT_SORTS][KEPT_OBJECTS]; /* addresses */
    PyObject *refs[KEPT_SORTS][KEPT_OBJECTS];
    PyObject *values[KEPT_SORTS][KEPT_OBJECTS]; /* NULL: it has no such attribute */
    int next[KEPT_SORTS];
    Py_ssize_t marks; /* when they were read */
} Keep;

static Py_ssize_t marks; /* how often an attribute of these was set */

static COLD void keep_forget(Keep *self)
{
    Keep before = *self; /* what ends below may ask, and be kept */
    int sort, i;
    self->marks = marks;
    memset(self->objects, 0, sizeof(self->objects));
    memset(self->refs, 0, sizeof(self->refs));
    memset(self->values, 0, sizeof(self->values));
    for (sort = 0; sort < KEPT_SORTS; sort++)
        for (i = 0; i < KEPT_OBJECTS; i++) {
            Py_XDECREF(before.refs[sort][i]);
            Py_XDECREF(before.values[sort][i]);
        }
}

static inline int still_lives(PyObject *ref, PyObject *object)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found;
    int lives = PyWeakref_GetRef(ref, &found) == 1 && found == object;
    Py_XDECREF(found);
    return lives;
#else
    return PyWeakref_GET_OBJECT(ref) == object;
#endif
}

/* As `look_up`, and kept where the object's class is one of Python's. */
static COLD PyObject *keep_look(Keep *self, int sort, PyObject *object)
{
    PyObject *name = sort == POOLS_OF ? s__kvsan_pools : s__kvsan_steps;
    Py_ssize_t before = marks;
    PyObject *found = look_up(object, name), *ref;
    int i = self->next[sort];
    if ((found == NULL && PyErr_Occurred()) || Py_TYPE(object)->tp_getattro != PyObject_GenericGetAttr ||
        !PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE))
        return found;
    if ((ref = PyWeakref_NewRef(object, NULL)) == NULL) {
        PyErr_Clear(); /* a class without */
        return found;
    }
    if (self->marks != before || marks != before) { /* meanwhile */
        Py_DECREF(ref);
        return found;
    }
    self->next[sort] = (i + 1) % KEPT_OBJECTS;
    Py_XSETREF(self->refs[sort][i], ref); /* one without a callback: nothing runs */
    self->objects[sort][i] = object;
    Py_XSETREF(self->values[sort][i], Py_XNewRef(found));
    return found;
}

/* The attribute that kvsan has put on an object, a new reference; NULL without an error if there is none, with one if
   something else went wrong. */
static inline PyObject *keep_read(Keep *self, int sort, PyObject *object)
{
    PyObject *const *objects = self->objects[sort];
    int i = objects[0] == object ? 0 : 1;
    if (RARE(self->marks != marks)) {
        keep_forget(self);
        return keep_look(self, sort, object);
    }
    if (RARE(objects[i] != object) || RARE(!still_lives(self->refs[sort][i], object)))
        return keep_look(self, sort, object);
    return Py_XNewRef(self->values[sort][i]);
}

static int keep_traverse(Keep *self, visitproc visit, void *arg)
{
    int sort, i;
    for (sort = 0; sort < KEPT_SORTS; sort++)
        for (i = 0; i < KEPT_OBJECTS; i++) {
            Py_VISIT(self->refs[sort][i]);
            Py_VISIT(self->values[sort][i]);
        }
    return 0;
}

/* `marked()`: what is kept is looked at again. */
static PyObject *kept_marked(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    marks++;
    Py_RETURN_NONE;
}

#endif
