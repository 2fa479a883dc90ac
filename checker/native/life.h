/* What happens to the lives of blocks: a line that waits for more of its sort, as numbers or as Python has it. */

#ifndef KVSAN_LIFE_H
#define KVSAN_LIFE_H

#include "pack.h"

static inline int life_waits(const Life *life)
{
    return life->by != NULL || life->line != NULL;
}

static void life_drop(Life *life)
{
    PyObject *line = life->line;
    life->line = NULL;
    Py_CLEAR(life->by); /* strings: nothing of anybody's runs */
    Py_CLEAR(life->pool);
    life->count = 0;
    Py_XDECREF(line); /* which may be a call */
}

/* More ids of it. 0, or -1 with an error. */
static int life_more(Life *life, const long long *ids, Py_ssize_t count)
{
    if (life->count + count > life->room) {
        Py_ssize_t room = life->room ? life->room : 64;
        long long *more;
        while (room < life->count + count)
            room *= 2;
        if ((more = PyMem_Realloc(life->ids, (size_t)room * sizeof(*more))) == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        life->ids = more;
        life->room = room;
    }
    if (count > 0)
        memcpy(life->ids + life->count, ids, (size_t)count * sizeof(*ids));
    life->count += count;
    return 0;
}

/* As a line that Python would have made, a new reference. No garbage is collected meanwhile: what ends then may make lines,
   and the next ids of this one wait elsewhere. */
static COLD PyObject *life_line(const Life *life)
{
    PyObject *ids, *id, *line;
    Py_ssize_t i;
    int collects;
    if (life->line != NULL)
        return Py_NewRef(life->line);
    collects = PyGC_Disable();
    ids = PyList_New(life->count);
    for (i = 0; ids != NULL && i < life->count; i++) {
        if ((id = PyLong_FromLongLong(life->ids[i])) == NULL)
            Py_CLEAR(ids);
        else
            PyList_SET_ITEM(ids, i, id);
    }
    line = ids == NULL ? NULL : Py_BuildValue("(lOONK)", life->code, life->by, life->pool, ids, life->now);
    if (collects)
        PyGC_Enable();
    return line;
}

/* 0, -1 with an error, 1: a name has no form here. Calls nothing of Python's. */
static int pack_life(Packed *self, const Life *life)
{
    size_t by_size, pool_size;
    const char *by = plain(life->by, &by_size), *pool = plain(life->pool, &pool_size); /* NULL where `line` is not */
    unsigned char *at;
    size_t before;
    Py_ssize_t i;
    if (by == NULL || pool == NULL)
        return 1;
    if (pack_room(self, HEAD + 2 * (2 + PLAIN_MOST) + 16 + 9 * (size_t)(life->count + 1)) < 0)
        return -1;
    before = self->used;
    if (self->used == 0)
        self->used = HEAD;
    at = self->bytes + self->used;
    *at++ = 0x95;
    *at++ = (unsigned char)life->code;
    self->used = (size_t)(put_plain(put_plain(at, by, by_size), pool, pool_size) - self->bytes);
    if (pack_head(self, (size_t)life->count, 0x90, 15, 0, 0xdc, 0xdd) < 0) {
        self->used = before;
        return -1;
    }
    at = self->bytes + self->used;
    for (i = 0; i < life->count; i++)
        at = put_int(at, life->ids[i]);
    self->used = (size_t)(put_long(at, life->now) - self->bytes);
    self->count++;
    return 0;
}

#endif
