/* What a thread hands on and takes, and a batch from pool to pool: `State`'s methods for what threads do for one another. */

#ifndef KVSAN_TOKENS_H
#define KVSAN_TOKENS_H

#include "in_place.h"

/* The arguments of `pack_copy` as a line that is put in place. 1: it is; 0: it cannot be; -1 with an error. */
static int copy_in_place(State *self, PyObject *const *args)
{
    enum { LABEL, ON, SOURCE, SOURCES, TARGET, TARGETS, ORDER, PLANNED, AT_SITE };
    static const int items[] = {LABEL, ORDER, -YES, PLANNED, -NONE, -NONE, AT_SITE};
    Packed *packed;
    const char *letters;
    unsigned char *at;
    size_t size, i, before;
    int done, side;
    if ((letters = plain(args[ON], &size)) == NULL || size > TEXT_ROOM)
        return 0;
    if ((done = op_may(self)) <= 0)
        return done;
    if ((at = op_begins(self, 13, ACCESS)) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    packed = self->packed;
    before = packed->used; /* nothing runs from here on */
    packed->used = (size_t)(put_plain(at, letters, size) - packed->bytes);
    for (done = 0, side = SOURCE; done == 0 && side <= TARGET; side += TARGET - SOURCE)
        if ((done = pack_head(packed, 1, 0x80, 15, 0, 0xde, 0xdf)) == 0 &&
            (done = PyUnicode_CheckExact(args[side]) ? pack_value(packed, args[side], 1) : 1) == 0)
            done = pack_value(packed, args[side + 1], 1);
    for (i = 0; done == 0 && i < sizeof(items) / sizeof(items[0]); i++) {
        if (items[i] >= 0)
            done = pack_value(packed, args[items[i]], 1);
        else if ((done = pack_room(packed, 1)) == 0)
            packed->bytes[packed->used++] = (unsigned char)-items[i];
    }
    if (done == 0 && (done = pack_room(packed, 9)) == 0) {
        return op_ends(self, packed->bytes + packed->used) < 0 ? -1 : 1;
    }
    packed->used = before;
    return done < 0 ? -1 : 0;
}

/* `pack_copy(label, on, source, sources, target, targets, order, planned, site)`: a batch from one pool to another, with
   lists of ids, which are packed at once and need not be copied. Whether it was: only where lines are packed. */
static PyObject *State_pack_copy(State *self, PyObject *const *args, Py_ssize_t given)
{
    PyObject *line = NULL, *by = NULL, *now = NULL;
    Lock *lock;
    int done;
    if (given != 9) {
        PyErr_SetString(PyExc_TypeError, "pack_copy takes nine arguments");
        return NULL;
    }
    if (self->packed == NULL || !PyList_CheckExact(args[3]) || !PyList_CheckExact(args[5]) ||
        PyList_GET_SIZE(args[3]) == 0 || PyList_GET_SIZE(args[5]) == 0)
        Py_RETURN_FALSE;
    if (state_enter(self, &lock) < 0)
        return NULL;
    done = copy_in_place(self, args);
    if (done != 0) {
        state_leave(lock);
        return done < 0 ? NULL : Py_NewRef(Py_True);
    }
    if ((by = state_thread(self)) != NULL && (now = state_now(self)) != NULL)
        line = Py_BuildValue("(iOO{OO}{OO}OOOOOOOO)", ACCESS, by, args[1], args[2], args[3], args[4], args[5], args[0],
                             args[6], Py_True, args[7], Py_None, Py_None, args[8], now);
    done = state_add(self, line) < 0 ? -1 : 1;
    state_leave(lock);
    Py_XDECREF(by);
    Py_XDECREF(now);
    return done < 0 ? NULL : Py_NewRef(Py_True);
}

static COLD int hand_line_slowly(State *self, int code, PyObject *token)
{
    PyObject *by, *now;
    size_t size;
    const char *letters = plain(token, &size);
    unsigned char *at;
    int done = letters != NULL && size < 2 * TEXT_ROOM ? op_may(self) : 0;
    if (done > 0 && (at = op_begins(self, 4, code)) != NULL)
        return op_ends(self, put_plain(at, letters, size));
    if (PyErr_Occurred())
        return -1;
    done = -1;
    by = state_thread(self);
    now = by == NULL ? NULL : state_now(self);
    if (now != NULL && state_add(self, Py_BuildValue("(iOOO)", code, by, token, now)) >= 0)
        done = 0;
    Py_XDECREF(by);
    Py_XDECREF(now);
    return done;
}

/* `(code, by, token, now)` under the lock. */
static HOT int hand_line(State *self, int code, PyObject *token)
{
    size_t size;
    const char *letters = plain(token, &size);
    unsigned char *at;
    if (RARE(letters == NULL) || RARE(size > TEXT_ROOM) ||
        RARE((at = ops_at_once(self, state_of_thread(), 1, 4)) == NULL))
        return hand_line_slowly(self, code, token);
    at = put_plain(op_put(at, 4, code), letters, size);
    ops_are_put(self, put_long(at, clock_now()), 1);
    return 0;
}

static char process[32]; /* `.` and this one's number: asking the system for it is a call of the system's */
static size_t process_size; /* 0: it is to be asked */

static void process_forked(void)
{
    process_size = 0;
}

static COLD void process_asked(void)
{
    process[0] = '.';
    process_size = (size_t)(put_digits(process + 1, (Py_ssize_t)getpid()) - process);
    process[process_size] = 0;
}

/* The name of a token: prefix, what it is for, its number, the process. A new reference. */
static PyObject *token_named(State *self, PyObject *what)
{
    char letters[2 * TEXT_ROOM + 24 + sizeof(process)], *at = letters;
    const char *parts[2];
    size_t sizes[2], i;
    Py_ssize_t number = ++self->tokens;
    if (RARE(process_size == 0))
        process_asked();
    parts[0] = plain(self->prefix, &sizes[0]);
    parts[1] = plain(what, &sizes[1]);
    if (RARE(parts[0] == NULL || parts[1] == NULL || sizes[0] > TEXT_ROOM || sizes[1] > TEXT_ROOM || number < 0))
        return PyUnicode_FromFormat("%S%S%zd%s", self->prefix, what, number, process);
    for (i = 0; i < 2; i++) {
        memcpy(at, parts[i], sizes[i]);
        at += sizes[i];
    }
    at = put_digits(at, number);
    memcpy(at, process, sizeof(process));
    return PyUnicode_FromStringAndSize(letters, at + process_size - letters);
}

/* A new reference to the token. `ops` (or NULL): so many were logged then, which is a mark. */
static PyObject *handed_on(State *self, PyObject *what, Py_ssize_t *ops)
{
    PyObject *token;
    Lock *lock;
    if (RARE(self->prefix == NULL)) {
        PyErr_SetString(PyExc_AttributeError, "prefix");
        return NULL;
    }
    if (RARE(state_enter(self, &lock) < 0))
        return NULL;
    token = token_named(self, what);
    if (USUAL(token != NULL) && USUAL(self->on) && RARE(hand_line(self, PUT, token) < 0) &&
        state_failed(self, s_put) < 0)
        Py_CLEAR(token);
    if (USUAL(token != NULL) && ops != NULL) { /* `mark` */
        self->sealed = self->count - 1;
        *ops = self->count;
    }
    state_leave(lock);
    return token;
}

/* `hand_on(what)`: a put of a fresh token, whose name is what it gives back. */
static PyObject *State_hand_on(State *self, PyObject *what)
{
    return handed_on(self, what, NULL);
}

/* `hand_on_at(what)`: the same, and the number of the latest op. */
static PyObject *State_hand_on_at(State *self, PyObject *what)
{
    Py_ssize_t ops;
    PyObject *token = handed_on(self, what, &ops), *mark = token == NULL ? NULL : planned_of(ops);
    if (mark != NULL)
        return Py_BuildValue("(NN)", token, mark);
    Py_XDECREF(token);
    return NULL;
}

/* `take_over_from(token)`: a get of it. */
static PyObject *State_taken(State *self, PyObject *token)
{
    PyObject *done = Py_None;
    Lock *lock;
    if (RARE(!self->on))
        Py_RETURN_NONE;
    if (RARE(state_enter(self, &lock) < 0))
        return NULL;
    if (RARE(hand_line(self, GET, token) < 0) && state_failed(self, s_get) < 0)
        done = NULL;
    state_leave(lock);
    return Py_XNewRef(done);
}

#endif
