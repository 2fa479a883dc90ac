/* A reentrant lock, as `threading.RLock`, that C takes without a call, in one cache line of its own.

   Its fields change under the GIL, and as long as nobody has to wait they are all of it. Whoever has to wait takes the
   gate for the one who holds the lock, and waits for that; while there are such, the lock belongs to whoever has the
   gate, so that it is handed over without the GIL, as that of Python is. Both extensions use this one type: `_lines` has
   it, `_hot` is told of it. */

#ifndef KVSAN_LOCK_H
#define KVSAN_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <time.h>

#ifdef __GNUC__
#define LOCK_COLD __attribute__((cold, noinline, unused))
#define LOCK_RARE(is) __builtin_expect(!!(is), 0)
#else
#define LOCK_COLD
#define LOCK_RARE(is) (is)
#endif

#define LOCK_NAME "kvsan.runtime._lines.Lock"

typedef struct {
    PyObject_HEAD
    uintptr_t owner;         /* while `count` is not 0 */
    unsigned int count;
    unsigned int waiting;    /* so many threads are at the gate */
    int gated;               /* the owner has the gate, too. If not, and none waits, it is free */
    PyThread_type_lock gate;
} Lock;

/* The calling thread: where its own storage is, as CPython's `_Py_ThreadId` has it. */
static inline uintptr_t lock_me(void) {
#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__) && defined(__GNUC__)
    uintptr_t me;
    __asm__("movq %%fs:0, %0" : "=r"(me));
    return me;
#elif defined(__linux__) && defined(__aarch64__) && defined(__GNUC__)
    uintptr_t me;
    __asm__("mrs %0, tpidr_el0" : "=r"(me));
    return me;
#else
    return (uintptr_t)PyThread_get_thread_ident();
#endif
}

static inline long long lock_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

/* Somebody else holds it or waits for it: waits so many µs, for ever if -1. 1: taken, 0: not, -1: a signal's handler
   raised. */
LOCK_COLD static int lock_wait(Lock *self, PY_TIMEOUT_T us) {
    PyLockStatus done;
    long long until = us > 0 ? lock_now_us() + us : 0;
    if (us == 0 && self->count)
        return 0;
    Py_INCREF(self);  /* the thread that holds it may be the last one that knows it */
    if (self->count && !self->gated)
        self->gated = PyThread_acquire_lock(self->gate, NOWAIT_LOCK);
    self->waiting++;
    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        done = PyThread_acquire_lock_timed(self->gate, us, 1);
        Py_END_ALLOW_THREADS
        if (done != PY_LOCK_INTR)
            break;
        if (PyErr_CheckSignals() < 0)
            break;
        if (us > 0) {
            us = until - lock_now_us();
            if (us < 0)
                us = 0;
        }
    }
    self->waiting--;
    if (done == PY_LOCK_ACQUIRED) {
        self->owner = lock_me();
        self->count = 1;
        self->gated = 1;
    }
    Py_DECREF(self);
    return done == PY_LOCK_INTR ? -1 : done == PY_LOCK_ACQUIRED;
}

/* 1: taken; 0: somebody else holds it or waits for it. */
static inline int lock_try(Lock *self) {
    uintptr_t me = lock_me();
    if (LOCK_RARE(self->count)) {
        if (self->owner != me)
            return 0;
        self->count++;
        return 1;
    }
    if (LOCK_RARE(self->waiting))
        return 0;
    self->owner = me;
    self->count = 1;
    return 1;
}

/* 0, or -1 with an error. */
static inline int lock_take(Lock *self) { return lock_try(self) || lock_wait(self, -1) == 1 ? 0 : -1; }

LOCK_COLD static void lock_open(Lock *self) {
    self->gated = 0;
    PyThread_release_lock(self->gate);
}

/* By who holds it. */
static inline void lock_leave(Lock *self) {
    self->count--;
    if (LOCK_RARE(self->gated) && self->count == 0)
        lock_open(self);
}

/* Whether the calling thread holds it. */
static inline int lock_mine(Lock *self) { return self->count && self->owner == lock_me(); }

#endif
