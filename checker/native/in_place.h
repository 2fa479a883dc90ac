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

#endif
