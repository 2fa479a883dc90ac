/* How lines are kept (`packed.h`) and what values are as MessagePack. Calls nothing of Python's. */

#ifndef KVSAN_PACK_H
#define KVSAN_PACK_H

#include "common.h"
#include "text.h"

/* As in `lines.py`. */
enum { ACCESS, RECORD, WAIT, SYNC, POLL, PUT, GET, ALLOC, FREE, TOUCH, DROP, HELD, SETTLED, GONE, TOLD };

/* The line of a blocking call (`lines.py`, whose subclass adds what is made of it). */
typedef struct {
    PyObject_HEAD
    PyObject *index, *given, *done, *told, *op;
} Held;

static PyTypeObject *held_class; /* the subclass of Held */
static PyObject *encode_slowly;  /* `lines.encoded` */

#define HEAD 5         /* of an array of lines: its sort and how many */
#define KEPT (1 << 20) /* so much memory is kept for the next lines */

typedef struct {
    PyObject_HEAD
    unsigned char *bytes; /* the head, then the lines */
    size_t used, room;
    Py_ssize_t count; /* lines, with those that wait, but for the one that is made plain */
    int busy;         /* whether one is */
    PyObject *later;  /* a list of those that came meanwhile, or NULL */
    size_t life, life_end;       /* where the latest line of blocks' lives begins and ends (`life.h`), or 0, */
    unsigned long long life_now; /* and its time */
} Packed;

/* ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static COLD int pack_grow(Packed *self, size_t more)
{
    size_t room = self->room ? self->room : 1 << 14;
    unsigned char *bytes;
    while (room < self->used + more)
        room *= 2;
    if ((bytes = PyMem_Realloc(self->bytes, room)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->bytes = bytes;
    self->room = room;
    return 0;
}

static inline int pack_room(Packed *self, size_t more)
{
    return self->used + more <= self->room ? 0 : pack_grow(self, more);
}

/* A byte and a big-endian number of so many bytes. There is room. */
static inline void pack_number(Packed *self, unsigned char sort, unsigned long long number, int size)
{
    unsigned char *at = self->bytes + self->used;
    *at++ = sort;
    self->used += 1 + (size_t)size;
    while (size > 0)
        *at++ = (unsigned char)(number >> (8 * --size));
}

/* The head of a text, of bytes, of a list or a map: `few` and how many if they are at most `most`, else one of the sorts
   for 8, 16 and 32 bits (0: there is none). */
static int pack_head(Packed *self, size_t count, unsigned char few, size_t most, unsigned char sort8,
                     unsigned char sort16, unsigned char sort32)
{
    if (pack_room(self, 9) < 0)
        return -1;
    if (count <= most && few)
        pack_number(self, (unsigned char)(few | count), 0, 0);
    else if (sort8 && count < 1 << 8)
        pack_number(self, sort8, count, 1);
    else if (count < 1 << 16)
        pack_number(self, sort16, count, 2);
    else if (count <= 0xffffffff)
        pack_number(self, sort32, count, 4);
    else {
        PyErr_SetString(PyExc_OverflowError, "too long for a line");
        return -1;
    }
    return 0;
}

/* That of a list. */
static int pack_list(Packed *self, Py_ssize_t count)
{
    return pack_head(self, (size_t)count, 0x90, 15, 0, 0xdc, 0xdd);
}

/* An item of one byte. */
static int pack_byte(Packed *self, unsigned char item)
{
    if (pack_room(self, 1) < 0)
        return -1;
    self->bytes[self->used++] = item;
    return 0;
}

static int pack_bytes(Packed *self, const char *bytes, size_t count)
{
    if (pack_room(self, count) < 0)
        return -1;
    memcpy(self->bytes + self->used, bytes, count);
    self->used += count;
    return 0;
}

static int pack_int(Packed *self, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow)
        return 1;
    if (pack_room(self, 9) < 0)
        return -1;
    self->used = (size_t)(put_int(self->bytes + self->used, number) - self->bytes);
    return 0;
}

/* ── values ───────────────────────────────────────────────────────────────────────────────────────────────────── */

#define DEEPEST 16

/* Whether it has half of a surrogate pair. To be told so by an error would make an object, and collect garbage. */
static int is_broken(PyObject *text)
{
    Py_ssize_t i, size = PyUnicode_GET_LENGTH(text);
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    if (kind == PyUnicode_1BYTE_KIND)
        return 0;
    for (i = 0; i < size; i++)
        if (PyUnicode_READ(kind, data, i) >> 11 == 0xd800 >> 11)
            return 1;
    return 0;
}

static int pack_value(Packed *self, PyObject *value, int depth);

/* The same for what is rare where lines are put in place. */
static COLD int pack_other(Packed *self, PyObject *value, int depth)
{
    Py_ssize_t size, at = 0;
    int done = 0;
    if (value == Py_None || PyBool_Check(value))
        return pack_byte(self, value == Py_None ? 0xc0 : value == Py_True ? 0xc3 : 0xc2);
    if (PyUnicode_CheckExact(value)) {
        const char *text;
        if (is_broken(value))
            return 1;
        if ((text = PyUnicode_AsUTF8AndSize(value, &size)) == NULL)
            return -1;
        if (pack_head(self, (size_t)size, 0xa0, 31, 0xd9, 0xda, 0xdb) < 0)
            return -1;
        return pack_bytes(self, text, (size_t)size);
    }
    if (PyBytes_CheckExact(value)) {
        size = PyBytes_GET_SIZE(value);
        if (pack_head(self, (size_t)size, 0, 0, 0xc4, 0xc5, 0xc6) < 0)
            return -1;
        return pack_bytes(self, PyBytes_AS_STRING(value), (size_t)size);
    }
    if (PyDict_CheckExact(value) && depth < DEEPEST) {
        PyObject *key, *item;
        if (pack_head(self, (size_t)PyDict_GET_SIZE(value), 0x80, 15, 0, 0xde, 0xdf) < 0)
            return -1;
        while (done == 0 && PyDict_Next(value, &at, &key, &item))
            if ((done = PyUnicode_CheckExact(key) ? pack_value(self, key, depth + 1) : 1) == 0)
                done = pack_value(self, item, depth + 1);
        return done;
    }
    return 1;
}

/* 0, -1 with an error, 1 for what has no form here. Calls nothing of Python's. */
static int pack_value(Packed *self, PyObject *value, int depth)
{
    const char *letters;
    Py_ssize_t i;
    size_t size;
    int done;
    if (PyLong_CheckExact(value))
        return pack_int(self, value);
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        if (depth == DEEPEST)
            return 1;
        done = pack_list(self, PySequence_Fast_GET_SIZE(value));
        for (i = 0; done == 0 && i < PySequence_Fast_GET_SIZE(value); i++)
            done = pack_value(self, PySequence_Fast_GET_ITEM(value, i), depth + 1);
        return done;
    }
    if ((letters = plain(value, &size)) == NULL)
        return pack_other(self, value, depth);
    if (pack_room(self, size + 2) < 0)
        return -1;
    self->used = (size_t)(put_plain(self->bytes + self->used, letters, size) - self->bytes);
    return 0;
}

/* A blocking call's line: `(SYNC, *given)` if it has returned, else `(HELD, *given, done)`. */
static int pack_held(Packed *self, Held *held)
{
    int returned = held->done == Py_True, done;
    Py_ssize_t i, size;
    if (held->given == NULL || !PyTuple_CheckExact(held->given) || PyTuple_GET_SIZE(held->given) > 12)
        return 1;
    if (!returned && held->done != Py_False && held->done != Py_None)
        return 1;
    if (held->told == NULL || !PyBool_Check(held->told)) /* to let go of it may be a call */
        return 1;
    size = PyTuple_GET_SIZE(held->given);
    if (pack_room(self, 2) < 0)
        return -1;
    pack_number(self, (unsigned char)(0x90 | (size + (returned ? 1 : 2))), 0, 0);
    pack_number(self, returned ? SYNC : HELD, 0, 0);
    for (done = 0, i = 0; done == 0 && i < size; i++)
        done = pack_value(self, PyTuple_GET_ITEM(held->given, i), 0);
    if (done == 0 && !returned && (done = pack_value(self, held->done, 0)) == 0)
        Py_SETREF(held->told, Py_NewRef(held->done == Py_None ? Py_True : Py_False));
    return done;
}

#endif
