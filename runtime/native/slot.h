/* Attributes of other code's objects, read where their class keeps them; a Kernel's and a Copy's. */

#ifndef KVSAN_LINES_SLOT_H
#define KVSAN_LINES_SLOT_H

#include "common.h"

/* An attribute that a type keeps in its objects' own memory (`__slots__`, or a member in C) is read there. */
typedef struct { PyObject *name; Py_ssize_t offset; int kind; } Slot;

static int slot_find(Slot *slot, PyTypeObject *type, const char *name) {
    Py_XSETREF(slot->name, PyUnicode_InternFromString(name));
    slot->offset = -1;
    slot->kind = 0;
    if (slot->name == NULL)
        return -1;
    PyObject *found = PyObject_GetAttr((PyObject *)type, slot->name);
    if (found == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    if (Py_TYPE(found) == &PyMemberDescr_Type && PyType_IsSubtype(type, PyDescr_TYPE(found))) {
        PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        int kind = member->type;
        if (kind == T_OBJECT || kind == T_OBJECT_EX || kind == T_PYSSIZET || kind == T_LONGLONG || kind == T_BOOL) {
            slot->offset = member->offset;
            slot->kind = kind;
        }
    }
    Py_DECREF(found);
    return 0;
}

#define AT(slot, object, type) (*(type *)((char *)(object) + (slot)->offset))

static inline int slot_holds(const Slot *slot) { return slot->kind == T_OBJECT || slot->kind == T_OBJECT_EX; }

static inline PyObject *slot_get(const Slot *slot, PyObject *object) {
    if (slot_holds(slot)) {
        PyObject *found = AT(slot, object, PyObject *);
        if (found != NULL)
            return Py_NewRef(found);
    }
    return PyObject_GetAttr(object, slot->name);
}

/* As a number; -1 with an exception set if it is none. */
static inline long long slot_number(const Slot *slot, PyObject *object) {
    if (slot->kind == T_PYSSIZET)
        return AT(slot, object, Py_ssize_t);
    if (slot->kind == T_LONGLONG)
        return AT(slot, object, long long);
    PyObject *found = slot_get(slot, object);
    if (found == NULL)
        return -1;
    long long number = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return number;
}

static inline int slot_put_number(const Slot *slot, PyObject *object, long long number) {
    if (slot->kind == T_PYSSIZET) {
        AT(slot, object, Py_ssize_t) = (Py_ssize_t)number;
        return 0;
    }
    if (slot->kind == T_LONGLONG) {
        AT(slot, object, long long) = number;
        return 0;
    }
    PyObject *made = PyLong_FromLongLong(number);
    if (made == NULL)
        return -1;
    int done = PyObject_SetAttr(object, slot->name, made);
    Py_DECREF(made);
    return done;
}

static inline int slot_true(const Slot *slot, PyObject *object) {
    if (slot->kind == T_BOOL)
        return AT(slot, object, char) != 0;
    PyObject *found = slot_get(slot, object);
    if (found == NULL)
        return -1;
    int truth = found == Py_True ? 1 : found == Py_False ? 0 : PyObject_IsTrue(found);
    Py_DECREF(found);
    return truth;
}

/* The attributes of a Kernel and of a Copy, which are read where their classes keep them. */
enum { K_NAME, K_READS, K_WRITES, K_STEP, K_FIELDS };
enum { C_NAME, C_SOURCE, C_SOURCES, C_TARGET, C_TARGETS, C_ORDER, C_STEP, C_FIELDS };
static const char *const kernel_names[] = {"name", "reads", "writes", "step"};
static const char *const copy_names[] = {"name", "source", "sources", "target", "targets", "order", "step"};
static Slot kernel_slots[K_FIELDS], copy_slots[C_FIELDS];

/* All of them, new references. -1: raised, and there are none. */
static int fields_of(PyObject *given, PyObject *type, const Slot *slots, int count, PyObject **out) {
    int own = (PyObject *)Py_TYPE(given) == type;
    for (int at = 0; at < count; at++) {
        out[at] = own ? slot_get(&slots[at], given) : PyObject_GetAttr(given, slots[at].name);
        if (out[at] == NULL) {
            while (at > 0)
                Py_DECREF(out[--at]);
            return -1;
        }
    }
    return 0;
}

#endif
