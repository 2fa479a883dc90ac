/* Lines that are put in place: into the bytes that wait, with no Python object made for them. */

#ifndef KVSAN_IN_PLACE_H
#define KVSAN_IN_PLACE_H

#include "lines.h"

enum { NONE = 0xc0, NO = 0xc2, YES = 0xc3 }; /* items of one byte */

/* A line of so many items is about to be put in place: where its second one goes, behind its code. NULL with an error. */
static HOT unsigned char *line_begins(State *self, int items, int code)
{
    Packed *packed = self->packed;
    unsigned char *at;
    if (packed == NULL) { /* since the caller looked */
        PyErr_SetString(PyExc_RuntimeError, "another session began");
        return NULL;
    }
    if (pack_room(packed, HEAD + 2 + (size_t)items * (TEXT_ROOM + 9)) < 0)
        return NULL;
    if (packed->used == 0)
        packed->used = HEAD;
    at = packed->bytes + packed->used;
    *at++ = (unsigned char)(0x90 | items);
    *at++ = (unsigned char)code;
    return at;
}

/* It ends there, and is one more. */
static inline void line_ends(State *self, unsigned char *at)
{
    self->packed->used = (size_t)(at - self->packed->bytes);
    self->packed->count++;
}

/* Whether the line of an op of the calling thread may be put in place: 1, and its name is known; 0; -1 with an error. */
static HOT int op_may(State *self)
{
    PyObject *name;
    if (!in_place(self))
        return 0;
    if (!state_met(self)) {
        if ((name = state_meet(self)) == NULL)
            return -1;
        Py_DECREF(name);
    }
    return 1;
}

/* The line begins if it still may, behind whoever has ended: where its third item goes, behind its code and its thread.
   NULL, maybe with an error. */
static HOT unsigned char *op_begins(State *self, int items, int code)
{
    unsigned char *at;
    if (!in_place(self) || state_ended(self, self->packed->count) < 0 || (at = line_begins(self, items, code)) == NULL ||
        !state_met(self) || !mine->text.size) /* what has ended may have asked another recorder */
        return NULL;
    return put_text(at, &mine->text);
}

/* It ends with its time, and has its number. 0, or -1 with an error. */
static HOT int op_ends(State *self, unsigned char *at)
{
    line_ends(self, put_long(at, clock_now()));
    self->count++;
    return state_full(self);
}

#endif
