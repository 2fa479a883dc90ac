/* Names by two numbers, and where objects keep numbers in their own memory: what streams are known by (`streams.h`). */

#ifndef KVSAN_KNOWN_H
#define KVSAN_KNOWN_H

#include "common.h"
#include "text.h"

#define MET 4

/* Names by two numbers: a device, and a stream of it. The numbers stand apart, since they are compared each time. */
typedef struct {
    long long device[MET], number[MET];
    Text text[MET];
    int count, next;
} Known;

#define KNOWN_HAS(i) (((self->number[i] ^ number) | (self->device[i] ^ device)) == 0)

/* -1: it is not there. All are looked at, the first one last, for which compilers need no branch. */
static inline int known_find(const Known *self, long long device, long long number)
{
    int at = KNOWN_HAS(3) ? 3 : MET;
    at = KNOWN_HAS(2) ? 2 : at;
    at = KNOWN_HAS(1) ? 1 : at;
    at = KNOWN_HAS(0) ? 0 : at;
    return RARE(at >= self->count) ? -1 : at;
}

/* One more, in the place of the oldest if there is no room; its place. */
static COLD int known_add(Known *self, long long device, long long number, const Text *text)
{
    int i = self->next;
    self->next = (i + 1) % MET;
    if (self->count < MET)
        self->count++;
    self->device[i] = device;
    self->number[i] = number;
    self->text[i] = *text;
    return i;
}

static COLD PyObject *class_has(PyTypeObject *type, PyObject *name, PyTypeObject *sort)
{
    PyObject *found = look_up((PyObject *)type, name);
    if (found != NULL && Py_TYPE(found) != sort)
        Py_CLEAR(found);
    PyErr_Clear();
    return found;
}

/* Where objects of a class keep a whole number of eight bytes; -1 if they do not. */
static COLD Py_ssize_t number_place(PyTypeObject *type, PyObject *name)
{
    PyMemberDescrObject *found = (PyMemberDescrObject *)class_has(type, name, &PyMemberDescr_Type);
    Py_ssize_t at = -1;
    if (found != NULL && PyType_IsSubtype(type, PyDescr_TYPE(found))) {
        int sort = found->d_member->type;
        if (sort == T_LONGLONG || (sort == T_LONG && sizeof(long) == 8) || (sort == T_PYSSIZET && sizeof(Py_ssize_t) == 8))
            at = found->d_member->offset;
    }
    Py_XDECREF(found);
    return at;
}

static inline long long number_in(PyObject *object, Py_ssize_t at)
{
    return *(long long *)((char *)object + at);
}

#endif
