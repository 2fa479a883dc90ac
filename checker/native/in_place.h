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

/* So many lines of ops of the calling thread, whose state of Python's has that number, go in at once, each with no more
   items than that: where the first one goes; NULL if anything stands in the way. Runs nothing. */
static inline unsigned char *ops_at_once(const State *self, uint64_t thread, int lines, int items)
{
    const Packed *packed = self->packed;
    const PyObject *dead = self->dead_threads;
    const size_t most = HEAD + (size_t)lines * (2 + (size_t)items * (TEXT_ROOM + 9));
    const Mine *own = mine;
    if (RARE(packed == NULL) || RARE(!self->reads_clock) || RARE(own == NULL) || RARE(dead == NULL))
        return NULL;
    if (RARE(own->serial != self->serial) || RARE(own->state != thread) || RARE(!own->text.size) ||
        RARE(Py_TYPE(dead) != deque_type) || RARE(Py_SIZE(dead) != 0))
        return NULL;
    if (RARE(packed->busy) || RARE(packed->later != NULL) || RARE(packed->used == 0) || RARE(packed->count <= 0) ||
        RARE(packed->count + lines >= self->batch) || RARE(packed->used + most > packed->room) ||
        RARE(packed->used + most > PACKED_MOST))
        return NULL;
    return packed->bytes + packed->used;
}

/* One of them begins: where its third item goes, behind its code and its thread. */
static inline unsigned char *op_put(unsigned char *at, int items, int code)
{
    at[0] = (unsigned char)(0x90 | items);
    at[1] = (unsigned char)code;
    return put_text(at + 2, &mine->text);
}

/* The last one of so many ends there. */
static inline void ops_are_put(State *self, unsigned char *at, int lines)
{
    Packed *packed = self->packed;
    packed->used = (size_t)(at - packed->bytes);
    packed->count += lines;
    self->count += lines;
}

static Spelled spelled_pools[2]; /* as a rule there are two */

static inline const Text *pool_spelled(PyObject *pool)
{
    Spelled *of = spelled_pools;
    if (of->string != pool && (of[1].string == pool || of->string != NULL))
        of++;
    return spelled(of, pool);
}

/* What happens to the lives of blocks of one pool, put at once; neighbours become one line. 1: it is done; 0: it is not,
   and nothing is. Runs nothing. */
static inline int lives_at_once(State *self, uint64_t thread, int code, PyObject *pool, const long long *ids,
                                Py_ssize_t count)
{
    const Text *name;
    const long long *end = ids + count;
    Packed *packed = self->packed;
    unsigned char *head, *at;
    size_t size;
    int begins;
    if (RARE((head = ops_at_once(self, thread, 1, 5)) == NULL) ||
        RARE(packed->used + 9 * (size_t)count + 1024 > packed->room) || RARE((name = pool_spelled(pool)) == NULL))
        return 0;
    size = (size_t)(put_text(op_put(head, 5, code), name) - head);
    begins = self->count - 1 <= self->sealed || !life_is(packed, head, size);
    if (begins)
        life_begins(packed, head, size, clock_now());
    for (at = life_ids(packed); ids < end; ids++)
        at = put_wide(at, *ids);
    life_ends(packed, size, at, count);
    self->count += begins;
    return 1;
}

/* Whether nobody has the recorder's lock, which is one of ours: then nothing comes between as long as nothing runs. */
static inline int lock_is_free(const State *self)
{
    const Lock *lock = (const Lock *)self->lock;
    return USUAL(lock != NULL) && USUAL(Py_TYPE(lock) == lock_type) && USUAL(!lock->count) && USUAL(!lock->waiting);
}

/* It ends with its time, and has its number. 0, or -1 with an error. */
static HOT int op_ends(State *self, unsigned char *at)
{
    line_ends(self, put_long(at, clock_now()));
    self->count++;
    return state_full(self);
}

#endif
