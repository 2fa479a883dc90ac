/* A queue of lines on their way to the process beside, as MessagePack from the moment that they are put in: no object is
   kept, so there is nothing for the garbage collector, and nothing to be fetched again when they are handed over.

   What MessagePack has no form for, `lines.encoded` makes plain: a line with any of that goes through it whole. A line of
   blocks' lives waits until the next one comes, since neighbours become one (`state_life`).

   `lines.encoded` runs code of whoever made the values (`item`, `__str__`, what the garbage collector ends), which may
   put in lines, take what is there, or let all of it go; nothing else here does. So lines that come meanwhile follow the
   one that is being made plain (`later`), as their numbers do, and what is taken meanwhile are the lines before it. */

#ifndef KVSAN_PACKED_H
#define KVSAN_PACKED_H

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

/* A line of blocks' lives: as numbers, `by` and `pool` being strings; or, where ids or the time are none, `line`:
   `(code, by, pool, [id, …], now)`. If both `by` and `line` are NULL, none waits. */
typedef struct {
    long code;
    PyObject *by, *pool, *line;
    unsigned long long now;
    long long *ids;
    Py_ssize_t count, room;
} Life;

typedef struct {
    PyObject_HEAD
    unsigned char *bytes; /* the head, then the lines */
    size_t used, room;
    Py_ssize_t count; /* lines, with those that wait, but for the one that is made plain */
    int busy;         /* whether one is */
    Life life;        /* one that waits */
    PyObject *later;  /* a list of those that came meanwhile, or NULL */
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
    if (overflow || (number == -1 && PyErr_Occurred()))
        return PyErr_Occurred() ? -1 : 1;
    if (pack_room(self, 9) < 0)
        return -1;
    if (number >= 0) {
        unsigned long long plain = (unsigned long long)number;
        if (plain < 1 << 7)
            pack_number(self, (unsigned char)plain, 0, 0);
        else if (plain < 1 << 8)
            pack_number(self, 0xcc, plain, 1);
        else if (plain < 1 << 16)
            pack_number(self, 0xcd, plain, 2);
        else if (plain <= 0xffffffff)
            pack_number(self, 0xce, plain, 4);
        else
            pack_number(self, 0xcf, plain, 8);
    } else if (number >= -32)
        pack_number(self, (unsigned char)number, 0, 0);
    else
        pack_number(self, 0xd3, (unsigned long long)number, 8);
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

/* 0, -1 with an error, 1 for what has no form here. Calls nothing of Python's. */
static int pack_value(Packed *self, PyObject *value, int depth)
{
    Py_ssize_t size, i, at = 0;
    int done = 0;
    if (value == Py_None || PyBool_Check(value)) {
        if (pack_room(self, 1) < 0)
            return -1;
        pack_number(self, value == Py_None ? 0xc0 : value == Py_True ? 0xc3 : 0xc2, 0, 0);
        return 0;
    }
    if (PyLong_CheckExact(value))
        return pack_int(self, value);
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
    if (depth == DEEPEST)
        return 1;
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        size = PySequence_Fast_GET_SIZE(value);
        if (pack_head(self, (size_t)size, 0x90, 15, 0, 0xdc, 0xdd) < 0)
            return -1;
        for (i = 0; done == 0 && i < size && i < PySequence_Fast_GET_SIZE(value); i++)
            done = pack_value(self, PySequence_Fast_GET_ITEM(value, i), depth + 1);
        return done == 0 && i < size ? 1 : done;
    }
    if (PyDict_CheckExact(value)) {
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

/* ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What has no form here, made plain by Python. */
static int pack_slowly(Packed *self, PyObject *line)
{
    PyObject *lines = PyList_New(1), *packed;
    int done = -1;
    if (lines == NULL)
        return -1;
    PyList_SET_ITEM(lines, 0, Py_NewRef(line));
    packed = PyObject_CallOneArg(encode_slowly, lines);
    Py_DECREF(lines);
    if (packed == NULL)
        return -1;
    if (PyBytes_CheckExact(packed) && PyBytes_GET_SIZE(packed) > 1) { /* but for the head of its list of one */
        if (self->used == 0 && pack_room(self, HEAD) == 0) /* all were taken meanwhile */
            self->used = HEAD;
        done = self->used == 0 ? -1 : pack_bytes(self, PyBytes_AS_STRING(packed) + 1, (size_t)PyBytes_GET_SIZE(packed) - 1);
    } else
        PyErr_SetString(PyExc_TypeError, "a line that has no form");
    Py_DECREF(packed);
    return done;
}

/* Not while one is being made plain. Where it fails, nothing of the line is left. */
static int pack_line(Packed *self, PyObject *line)
{
    size_t before;
    int done;
    if (self->used == 0) {
        if (pack_room(self, HEAD) < 0)
            return -1;
        self->used = HEAD;
    }
    before = self->used;
    done = (PyTypeObject *)Py_TYPE(line) == held_class ? pack_held(self, (Held *)line) : pack_value(self, line, 0);
    if (done != 0)
        self->used = before;
    if (done == 1) {
        self->busy = 1;
        done = pack_slowly(self, line);
        self->busy = 0;
    }
    if (done == 0)
        self->count++;
    return done;
}

/* The lines that came meanwhile go in, in their order. What one of them fails at is the error, and the others follow;
   `done` is what is known until here. */
static int pack_later(Packed *self, int done)
{
    while (self->later != NULL) {
        PyObject *line, *first = done < 0 ? take_error() : NULL;
        if (PyList_GET_SIZE(self->later) == 0) {
            Py_CLEAR(self->later);
        } else {
            line = Py_NewRef(PyList_GET_ITEM(self->later, 0));
            self->count--; /* it is counted once it is packed */
            if (PyList_SetSlice(self->later, 0, 1, NULL) < 0 || pack_line(self, line) < 0)
                done = -1;
            Py_DECREF(line);
        }
        if (first != NULL) {
            PyErr_Clear();
            put_back_error(first);
        }
    }
    return done;
}

/* Whether a line that comes now comes in the middle of another one: it is not put in place. */
static inline int pack_waits(Packed *self)
{
    return self->busy || self->later != NULL;
}

static int pack_wait(Packed *self, PyObject *line)
{
    if ((self->later == NULL && (self->later = PyList_New(0)) == NULL) || PyList_Append(self->later, line) < 0)
        return -1;
    self->count++;
    return 0;
}

/* ── lives ────────────────────────────────────────────────────────────────────────────────────────────────────── */

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
    Py_ssize_t i;
    if (by == NULL || pool == NULL)
        return 1;
    if (pack_room(self, HEAD + 2 * (2 + PLAIN_MOST) + 16 + 9 * (size_t)(life->count + 1)) < 0)
        return -1;
    if (self->used == 0)
        self->used = HEAD;
    at = self->bytes + self->used;
    *at++ = 0x95;
    *at++ = (unsigned char)life->code;
    at = put_plain(put_plain(at, by, by_size), pool, pool_size);
    if (life->count < 16)
        *at++ = (unsigned char)(0x90 | life->count);
    else if (life->count < 1 << 16) {
        *at++ = 0xdc;
        *at++ = (unsigned char)(life->count >> 8);
        *at++ = (unsigned char)life->count;
    } else {
        *at++ = 0xdd;
        for (i = 4; i > 0; i--)
            *at++ = (unsigned char)(life->count >> (8 * (i - 1)));
    }
    for (i = 0; i < life->count; i++)
        at = put_int(at, life->ids[i]);
    self->used = (size_t)(put_long(at, life->now) - self->bytes);
    self->count++;
    return 0;
}

/* The line of lives that waits goes in, but for those that came while that was done. */
static int packed_settle_one(Packed *self)
{
    Life life = self->life;
    PyObject *line = NULL;
    int done;
    memset(&self->life, 0, sizeof(self->life));
    self->count--;
    done = pack_waits(self) ? 1 : pack_life(self, &life);
    if (done == 1) {
        done = -1;
        if ((line = life_line(&life)) != NULL)
            done = pack_waits(self) ? pack_wait(self, line) : pack_line(self, line);
        Py_XDECREF(line);
    }
    if (self->life.ids == NULL) { /* its memory is for the next one */
        self->life.ids = life.ids;
        self->life.room = life.room;
    } else
        PyMem_Free(life.ids);
    life.ids = NULL;
    life_drop(&life);
    return done;
}

/* The same, and those too: none waits then. The next line gets its number after this. */
static int packed_settle(Packed *self)
{
    int done = 0;
    if (!life_waits(&self->life))
        return 0;
    Py_INCREF(self); /* another queue may come in its place meanwhile (`listen`) */
    while (life_waits(&self->life) && done == 0) {
        int waits = pack_waits(self);
        done = packed_settle_one(self);
        if (!waits)
            done = pack_later(self, done);
    }
    Py_DECREF(self);
    return done;
}

/* The line has its number already: what comes while the one before it is packed, or while it is, follows it. */
static int packed_append(Packed *self, PyObject *line)
{
    int done = 0;
    if (pack_waits(self))
        return packed_settle(self) < 0 ? -1 : pack_wait(self, line);
    Py_INCREF(self);
    if (life_waits(&self->life))
        done = packed_settle_one(self);
    if (done == 0)
        done = pack_line(self, line);
    done = pack_later(self, done);
    Py_DECREF(self);
    return done;
}

/* ── as Python sees it ────────────────────────────────────────────────────────────────────────────────────────── */

static PyObject *Packed_append(Packed *self, PyObject *line)
{
    if (packed_append(self, line) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The bytes of all lines are let go. */
static void pack_dropped(Packed *self)
{
    self->used = 0;
    if (self->room > KEPT) { /* after a huge line */
        PyMem_Free(self->bytes);
        self->bytes = NULL;
        self->room = 0;
    }
}

static PyObject *Packed_clear(Packed *self, PyObject *unused)
{
    PyObject *later = self->later;
    (void)unused;
    pack_dropped(self);
    self->count = 0;
    self->later = NULL;
    life_drop(&self->life);
    Py_XDECREF(later); /* which may be a call */
    Py_RETURN_NONE;
}

/* All lines as one array of MessagePack; none are left. While one is made plain, those before it. */
static PyObject *Packed_take(Packed *self, PyObject *unused)
{
    PyObject *taken;
    Py_ssize_t waiting = 0;
    size_t used;
    (void)unused;
    if (pack_waits(self))
        waiting = life_waits(&self->life) + (self->later != NULL ? PyList_GET_SIZE(self->later) : 0);
    else if (packed_settle(self) < 0)
        return NULL;
    if (self->used == 0 && pack_room(self, HEAD) < 0)
        return NULL;
    used = self->used ? self->used : HEAD;
    self->used = 0;
    pack_number(self, 0xdd, (unsigned long long)(self->count - waiting), 4);
    self->used = used;
    taken = PyBytes_FromStringAndSize((char *)self->bytes, (Py_ssize_t)used);
    if (taken != NULL) {
        pack_dropped(self);
        self->count = waiting;
    }
    return taken;
}

static Py_ssize_t Packed_length(Packed *self)
{
    return self->count;
}

static PyObject *Packed_sizeof(Packed *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromSize_t(sizeof(Packed) + self->room);
}

static PyObject *Packed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    return type->tp_alloc(type, 0);
}

/* No `tp_clear`: what it holds are lines, and each cycle goes through a dict or a list, which is cleared. */
static int Packed_traverse(Packed *self, visitproc visit, void *arg)
{
    Py_VISIT(self->later);
    Py_VISIT(self->life.line);
    return 0;
}

static void Packed_dealloc(Packed *self)
{
    PyObject_GC_UnTrack(self);
    life_drop(&self->life);
    PyMem_Free(self->life.ids);
    Py_CLEAR(self->later);
    PyMem_Free(self->bytes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Packed_methods[] = {
    {"append", (PyCFunction)Packed_append, METH_O, "One more line."},
    {"clear", (PyCFunction)Packed_clear, METH_NOARGS, "Lets all lines go."},
    {"take", (PyCFunction)Packed_take, METH_NOARGS, "All lines as one array of MessagePack; none are left."},
    {"__sizeof__", (PyCFunction)Packed_sizeof, METH_NOARGS, "Bytes, with those of the lines and room for more."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods Packed_sequence = {.sq_length = (lenfunc)Packed_length};

static PyTypeObject PackedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Packed",
    .tp_doc = "Lines on their way, as MessagePack.",
    .tp_basicsize = sizeof(Packed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Packed_new,
    .tp_dealloc = (destructor)Packed_dealloc,
    .tp_traverse = (traverseproc)Packed_traverse,
    .tp_as_sequence = &Packed_sequence,
    .tp_methods = Packed_methods,
};

#endif
