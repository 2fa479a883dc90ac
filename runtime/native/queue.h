/* Queue: a recorder of the checker, to whose `add` a line is handed as a tuple, as `kvsan.checker.watched` does. */

#ifndef KVSAN_LINES_QUEUE_H
#define KVSAN_LINES_QUEUE_H

#include "ids.h"
#include "slot.h"

enum { Q_ACCESS, Q_RECORD, Q_WAIT, Q_SYNC, Q_POLL, Q_PUT, Q_GET, Q_ALLOC, Q_FREE, Q_TOUCH, Q_DROP,
       Q_HELD, Q_SETTLED };  /* attach/lines.py */

typedef struct {
    PyObject_HEAD
    PyObject *recorder, *failed;
    PyObject *add, *hold;  /* the recorder's methods */
    PyObject *held;        /* the class of a blocking call's line */
    long long most;
    Slot on, now, size, count, sealed, waiting, beside, index, done, told;
} Queue;

static int Queue_traverse(Queue *self, visitproc visit, void *arg) {
    Py_VISIT(self->recorder);
    Py_VISIT(self->failed);
    Py_VISIT(self->add);
    Py_VISIT(self->hold);
    Py_VISIT(self->held);
    return 0;
}

/* There is no tp_clear: what runs while others are cleared may make a line. Each cycle goes through the dict of the
   recorder or of the sink, which is cleared. */
static void Queue_dealloc(Queue *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->recorder);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->add);
    Py_CLEAR(self->hold);
    Py_CLEAR(self->held);
    Slot *slots[] = {&self->on,      &self->now,    &self->size,  &self->count, &self->sealed,
                     &self->waiting, &self->beside, &self->index, &self->done,  &self->told};
    for (size_t at = 0; at < sizeof(slots) / sizeof(*slots); at++)
        Py_XDECREF(slots[at]->name);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *Queue_new(PyTypeObject *type, PyObject *args, PyObject *more) {
    PyObject *recorder, *failed, *held;
    long long most;
    static char *names[] = {"recorder", "failed", "held", "most", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, more, "OOO!L", names, &recorder, &failed, &PyType_Type, &held, &most))
        return NULL;
    Queue *self = (Queue *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->recorder = Py_NewRef(recorder);
    self->failed = Py_NewRef(failed);
    self->held = Py_NewRef(held);
    self->most = most;
    PyTypeObject *kind = Py_TYPE(recorder), *line = (PyTypeObject *)held;
    if ((self->add = PyObject_GetAttrString(recorder, "add")) == NULL ||
        (self->hold = PyObject_GetAttrString(recorder, "hold")) == NULL || slot_find(&self->on, kind, "on") < 0 ||
        slot_find(&self->now, kind, "now") < 0 || slot_find(&self->size, kind, "_size") < 0 ||
        slot_find(&self->count, kind, "_count") < 0 || slot_find(&self->sealed, kind, "_sealed") < 0 ||
        slot_find(&self->waiting, kind, "_queue") < 0 || slot_find(&self->beside, kind, "_beside") < 0 ||
        slot_find(&self->index, line, "index") < 0 || slot_find(&self->done, line, "done") < 0 ||
        slot_find(&self->told, line, "told") < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyTypeObject QueueType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.Queue",
    .tp_basicsize = sizeof(Queue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Queue(recorder, failed, held, most): lines go to the checker's recorder, to its `add`. `failed` hears "
              "(where, exception); `held` is the class of a blocking call's line; at `most` bytes of ids lines are "
              "handed on.",
    .tp_new = Queue_new,
    .tp_dealloc = (destructor)Queue_dealloc,
    .tp_traverse = (traverseproc)Queue_traverse,
};

static int queue_settle_up(Queue *self) { return done(CALL(s_settle_up, self->recorder)); }

/* An exception is set: 0 if it is kvsan's own affair, -1 if it is the engine's. */
static int queue_failed(Queue *self, const char *where) {
    PyObject *error = error_object(), *text = PyUnicode_FromString(where);
    int result = -1;
    if (text != NULL) {
        PyObject *args[] = {text, error};
        result = done(PyObject_Vectorcall(self->failed, args, 2, NULL));
    }
    Py_XDECREF(text);
    Py_XDECREF(error);
    return result;
}

/* Takes the reference. */
static int queue_add(Queue *self, PyObject *line) {
    if (line == NULL)
        return -1;
    int result = done(PyObject_CallOneArg(self->add, line));
    Py_DECREF(line);
    return result;
}

static PyObject *queue_time(Queue *self) {
    PyObject *clock = slot_get(&self->now, self->recorder);
    if (clock == NULL)
        return NULL;
    long long ns;
    PyObject *t = time_now(clock, &ns);
    Py_DECREF(clock);
    return t;
}

/* A tuple of borrowed things, the last but `t`, which is taken. */
static PyObject *line_of(PyObject *const *items, Py_ssize_t count, PyObject *t) {
    PyObject *made = t == NULL ? NULL : PyTuple_New(count + 1);
    if (made == NULL) {
        Py_XDECREF(t);
        return NULL;
    }
    for (Py_ssize_t at = 0; at < count; at++)
        PyTuple_SET_ITEM(made, at, Py_NewRef(items[at]));
    PyTuple_SET_ITEM(made, count, t);
    return made;
}

/* `on` is the third of a line that has one; `answer` a poll's. */
static int queue_order(Queue *self, int code, const char *where, PyObject *by, PyObject *on, PyObject *event,
                       PyObject *answer) {
    int on_now = slot_true(&self->on, self->recorder);
    if (on_now <= 0)
        return on_now;
    PyObject *items[4] = {numbers[code], by, on != NULL ? on : event, on != NULL ? event : answer};
    Py_ssize_t count = on != NULL || answer != NULL ? 4 : 3;
    if (queue_add(self, line_of(items, count, queue_time(self))) < 0)
        return queue_failed(self, where);
    return 0;
}

/* The bytes of ids. NULL without an exception: something else, or none. */
static PyObject *bytes_of(PyObject *given, int *other) {
    Ids ids;
    PyObject *made = NULL;
    if (!ids_of(given, &ids)) {
        *other = 1;
        return NULL;
    }
    if (ids.count) {  /* as int32 and a byte that says so (attach/lines.py): half as much to hand over */
        made = PyBytes_FromStringAndSize(NULL, ids.count * (Py_ssize_t)sizeof(int32_t) + 1);
        if (made != NULL && narrow((int32_t *)PyBytes_AS_STRING(made), ids.at, ids.count))
            PyBytes_AS_STRING(made)[ids.count * (Py_ssize_t)sizeof(int32_t)] = 4;
        else if (made != NULL)
            Py_SETREF(made, PyBytes_FromStringAndSize((const char *)ids.at, ids.count * (Py_ssize_t)sizeof(int64_t)));
    }
    ids_done(&ids);
    return made;
}

/* 1: done; 0: the sink's own method has to do it; -1: raised. */
static int queue_life(Queue *self, int code, const char *where, PyObject *by, PyObject *pool, PyObject *blocks) {
    int on_now = slot_true(&self->on, self->recorder);
    if (on_now <= 0)
        return on_now < 0 ? -1 : 1;
    int other = 0;
    PyObject *some = bytes_of(blocks, &other);
    if (other)
        return 0;
    if (some == NULL)
        return PyErr_Occurred() && queue_failed(self, where) < 0 ? -1 : 1;
    PyObject *items[4] = {numbers[code], by, pool, some};
    int result = queue_add(self, line_of(items, 4, queue_time(self)));
    Py_DECREF(some);
    if (result < 0)
        result = queue_failed(self, where);
    return result < 0 ? -1 : 1;
}

/* Puts the bytes of a pool's ids into a dict, which is made at the first. */
static int keep(PyObject **sets, PyObject *pool, PyObject *given, Py_ssize_t *size, int *other) {
    PyObject *some = bytes_of(given, other);
    if (some == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(pool);
    *size += PyBytes_GET_SIZE(some);
    if (*sets == NULL)
        *sets = PyDict_New();
    int result = *sets == NULL ? -1 : PyDict_SetItem(*sets, pool, some);
    Py_DECREF(some);
    Py_DECREF(pool);
    return result;
}

/* 1: done; 0: the sink's own method has to do it; -1: raised. As `log_access`. */
static int queue_access(Queue *self, PyObject *label, PyObject *by, PyObject *on, PyObject *reads, PyObject *writes,
                        PyObject *const *pairs, PyObject *order, int batch, PyObject *planned, PyObject *step,
                        PyObject *site) {
    int on_now = slot_true(&self->on, self->recorder);
    if (on_now <= 0)
        return on_now < 0 ? -1 : 1;
    PyObject *kept[2] = {NULL, NULL};
    Py_ssize_t size = 0;
    int other = 0, result = 0;
    for (int side = 0; side < 2 && !other && result == 0; side++) {
        if (reads == NULL) {
            result = keep(&kept[side], pairs[2 * side], pairs[2 * side + 1], &size, &other);
            continue;
        }
        PyObject *sets = side ? writes : reads, *pool, *ids;
        Py_ssize_t place = 0;
        if (!PyDict_CheckExact(sets)) {
            other = 1;
            break;
        }
        while (!other && result == 0 && PyDict_Next(sets, &place, &pool, &ids))
            result = keep(&kept[side], pool, ids, &size, &other);
    }
    if (!other && result == 0 && (kept[0] != NULL || kept[1] != NULL)) {
        long long waiting = slot_number(&self->size, self->recorder);
        if (waiting == -1 && PyErr_Occurred())
            result = -1;
        else {
            waiting += size;
            PyObject *none = Py_None;
            PyObject *read = kept[0] != NULL ? kept[0] : none, *written = kept[1] != NULL ? kept[1] : none;
            PyObject *items[12] = {numbers[Q_ACCESS], by, on, read, written, label, order,
                                   batch ? Py_True : Py_False, planned, step, none, site};
            result = slot_put_number(&self->size, self->recorder, waiting);
            if (result == 0)
                result = queue_add(self, line_of(items, 12, queue_time(self)));
            if (result == 0) {
                waiting = slot_number(&self->size, self->recorder);
                result = PyErr_Occurred() ? -1 : waiting > self->most ? queue_settle_up(self) : 0;
            }
        }
    }
    Py_XDECREF(kept[0]);
    Py_XDECREF(kept[1]);
    if (result < 0)
        result = queue_failed(self, "access");
    return result < 0 ? -1 : !other;
}

/* The line of a call that blocks, a new reference. NULL: raised. */
static PyObject *queue_hold(Queue *self, PyObject *by, PyObject *event) {
    PyObject *t = queue_time(self);
    if (t == NULL)
        return NULL;
    PyObject *args[] = {by, event, Py_None, Py_None, t};
    PyObject *held = PyObject_Vectorcall(self->hold, args, 5, NULL);
    Py_DECREF(t);
    return held;
}

/* The call has returned, under the lock: `Core.settle`. 1: done; 0: the recorder has to do it; -1: raised. */
static int queue_settled(Queue *self, PyObject *held) {
    if (!slot_holds(&self->done) || !slot_holds(&self->told) || (PyObject *)Py_TYPE(held) != self->held)
        return 0;
    PyObject *told = AT(&self->told, held, PyObject *), *beside;
    if (told != Py_False) {  /* a process beside was told that it is out: it hears the rest too */
        if (told != Py_True || (beside = slot_get(&self->beside, self->recorder)) == NULL)
            return told == Py_True ? -1 : 0;
        Py_DECREF(beside);
        if (beside == Py_None)
            return 0;
    }
    Py_XSETREF(AT(&self->done, held, PyObject *), Py_NewRef(Py_True));
    if (told == Py_False)
        return 1;
    PyObject *queue = slot_get(&self->waiting, self->recorder), *index = slot_get(&self->index, held);
    PyObject *line = index == NULL ? NULL : PyTuple_Pack(3, numbers[Q_SETTLED], index, Py_True);
    int result = queue == NULL || line == NULL ? -1 : done(CALL(s_append, queue, line));
    Py_XDECREF(queue);
    Py_XDECREF(index);
    Py_XDECREF(line);
    if (result < 0)
        result = queue_failed(self, "blocking");
    return result < 0 ? -1 : 1;
}

#endif
