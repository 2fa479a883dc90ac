/* A line of blocks' lives, where it lies: `0x95 code by pool 0xdd count ids … 0xcf now`, with four bytes for the count and
   eight for the time. Neighbours of one sort become one line: as long as nothing follows it, more ids go where its time
   is, which is put behind them. */

#ifndef KVSAN_LIFE_H
#define KVSAN_LIFE_H

#include "pack.h"

#define LIFE_REST 14 /* bytes behind its pool, if it has no ids */

/* Whether it is the last one, and code, by and pool are these. */
static inline int life_is(const Packed *self, const unsigned char *head, size_t size)
{
    return self->life_end == self->used && self->used - self->life > size &&
           memcmp(self->bytes + self->life, head, size) == 0;
}

/* One more, without ids: they come next, and `life_ends`. There is room; its head may stand where it goes. */
static inline void life_begins(Packed *self, const unsigned char *head, size_t size, unsigned long long now)
{
    unsigned char *at;
    if (self->used == 0)
        self->used = HEAD;
    self->life = self->used;
    self->life_now = now;
    at = self->bytes + self->used;
    if (RARE(at != head))
        memcpy(at, head, size);
    memcpy(at + size, "\xdd\0\0\0", 5);
    self->used += size + LIFE_REST;
    self->count++;
}

/* Where its next ids go. */
static inline unsigned char *life_ids(Packed *self)
{
    return self->bytes + self->used - 9;
}

/* So many more ids end there. */
static inline void life_ends(Packed *self, size_t size, unsigned char *at, Py_ssize_t count)
{
    unsigned char *number = self->bytes + self->life + size + 1;
    unsigned long long so_far = (unsigned long long)number[0] << 24 | number[1] << 16 | number[2] << 8 | number[3];
    self->life_end = self->used = (size_t)(put_long(at, self->life_now) - self->bytes);
    put_big(number, so_far + (unsigned long long)count, 4);
}

#endif
