/* A queue between vLLM's threads (`vllm/handoff.py`: `Queue`): its fields, and `put` and `get` with what travels beside
   an item. The inner queue lets go of the GIL, so a queue's fields stay as they were made. */

#ifndef KVSAN_QUEUE_H
#define KVSAN_QUEUE_H

#include "here.h"
#include "lines.h"
#include "tokens.h"

/* ── what is put ──────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    PyObject_HEAD
    PyObject *token, *item;
    Py_ssize_t ops;     /* as a `Slot` has them */
    Py_ssize_t session; /* `State.sessions` */
} Stamped;

static PyTypeObject StampedType;

/* References of both are new ones. */
static Stamped *stamped_made(PyObject *token, PyObject *item, Py_ssize_t ops, Py_ssize_t session)
{
    Stamped *self = PyObject_GC_New(Stamped, &StampedType);
    if (self == NULL)
        return NULL;
    self->token = Py_NewRef(token);
    self->item = Py_NewRef(item);
    self->ops = ops;
    self->session = session;
    PyObject_GC_Track(self);
    return self;
}

static PyObject *Stamped_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"token", "planned", "item", "session", NULL};
    PyObject *token, *planned, *item;
    Py_ssize_t ops, session;
    (void)type; /* it has no subclasses */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOn:Stamped", names, &token, &planned, &item, &session) ||
        (ops = ops_of(planned)) < 0)
        return NULL;
    return (PyObject *)stamped_made(token, item, ops, session);
}

static PyObject *Stamped_planned(Stamped *self, void *unused)
{
    (void)unused;
    return planned_of(self->ops);
}

static int Stamped_traverse(Stamped *self, visitproc visit, void *arg)
{
    Py_VISIT(self->token);
    Py_VISIT(self->item);
    return 0;
}

/* Not the fields, which `get` reads: whatever holds it is cleared. */
static void Stamped_dealloc(Stamped *self)
{
    PyObject_GC_UnTrack(self);
    Py_DECREF(self->token);
    Py_DECREF(self->item);
    PyObject_GC_Del(self);
}

static PyMemberDef Stamped_members[] = {
    {"token", T_OBJECT_EX, offsetof(Stamped, token), READONLY, NULL},
    {"item", T_OBJECT_EX, offsetof(Stamped, item), READONLY, NULL},
    {"session", T_PYSSIZET, offsetof(Stamped, session), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef Stamped_getset[] = {
    {"planned", (getter)Stamped_planned, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject StampedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Stamped",
    .tp_doc = "What is put: its token, the op at which it was decided, and the thing.",
    .tp_basicsize = sizeof(Stamped),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Stamped_new,
    .tp_dealloc = (destructor)Stamped_dealloc,
    .tp_traverse = (traverseproc)Stamped_traverse,
    .tp_members = Stamped_members,
    .tp_getset = Stamped_getset,
};

/* ── the queue ────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    PyObject_HEAD
    State *state;
    PyObject *put, *get; /* the inner queue's */
    Plan *plan;
    Counter *put_hook, *get_hook;
    PyObject *inner;
} Queue;

static PyObject *Queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder", "inner", "plan", "put", "get", NULL};
    PyObject *state, *inner, *plan, *put_hook, *get_hook, *put, *get;
    Queue *self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!O!O!:Queue", names, &StateType, &state, &inner, &PlanType,
                                     &plan, &CounterType, &put_hook, &CounterType, &get_hook))
        return NULL;
    put = PyObject_GetAttr(inner, s_put);
    get = put == NULL ? NULL : PyObject_GetAttr(inner, s_get);
    self = get == NULL ? NULL : (Queue *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(put);
        Py_XDECREF(get);
        return NULL;
    }
    self->state = (State *)Py_NewRef(state);
    self->put = put;
    self->get = get;
    self->plan = (Plan *)Py_NewRef(plan);
    self->put_hook = (Counter *)Py_NewRef(put_hook);
    self->get_hook = (Counter *)Py_NewRef(get_hook);
    self->inner = Py_NewRef(inner);
    return (PyObject *)self;
}

/* The item with its token; NULL with an error. */
static PyObject *queue_stamp(Queue *self, PyObject *item)
{
    Py_ssize_t ops = 0, session = self->state->sessions;
    PyObject *token, *stamped;
    self->put_hook->count++;
    if (RARE((token = handed_on(self->state, s_q, &ops)) == NULL))
        return NULL;
    stamped = (PyObject *)stamped_made(token, item, ops, session);
    let_one_go(token);
    return stamped;
}

/* The same method in Python. */
static COLD PyObject *queue_slowly(Queue *self, PyObject *name, PyObject *const *args, Py_ssize_t given,
                                   PyObject *kwnames)
{
    PyObject *slow = PyObject_GetAttr((PyObject *)self, name), *result;
    if (slow == NULL)
        return NULL;
    result = PyObject_Vectorcall(slow, args, (size_t)given, kwnames);
    Py_DECREF(slow);
    return result;
}

/* `put(item, block=True, timeout=None)`, by place. What cannot be stamped is put as it is. */
static PyObject *Queue_put(Queue *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames)
{
    PyObject *call[4], *stamped = NULL, *result;
    Py_ssize_t i;
    if (RARE(kwnames != NULL) || RARE(given < 1) || RARE(given > 3))
        return queue_slowly(self, s__put, args, given, kwnames);
    if (USUAL(args[0] != Py_None) && USUAL(self->state->on) &&
        RARE((stamped = queue_stamp(self, args[0])) == NULL) && state_failed(self->state, s_queue) < 0)
        return NULL;
    call[0] = NULL;
    call[1] = USUAL(stamped != NULL) ? stamped : args[0];
    for (i = 1; i < given; i++)
        call[1 + i] = args[i];
    result = PyObject_Vectorcall(self->put, call + 1, (size_t)given | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_XDECREF(stamped);
    if (result == NULL)
        return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

/* `get(…)`: the item; its job is what the calling thread has from here on. */
static PyObject *Queue_get(Queue *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames)
{
    PyObject *found = PyObject_Vectorcall(self->get, args, (size_t)given, kwnames), *item, *done = NULL;
    Stamped *stamped = (Stamped *)found;
    if (found == NULL)
        return NULL;
    if (Py_TYPE(found) != &StampedType) { /* the word to stop, or put in a pause */
        if (plan_set(self->plan, 0) < 0 && state_failed(self->state, s_queue) < 0)
            Py_CLEAR(found);
        return found;
    }
    item = Py_NewRef(stamped->item);
    if (stamped->session != self->state->sessions) {
        if (plan_set(self->plan, 0) == 0)
            done = PyObject_CallMethodNoArgs((PyObject *)self, s__foreign);
    } else if (plan_set(self->plan, stamped->ops) == 0) {
        self->get_hook->count++;
        done = State_taken(self->state, stamped->token);
    }
    if (done == NULL && state_failed(self->state, s_queue) < 0)
        Py_CLEAR(item);
    Py_XDECREF(done);
    Py_DECREF(found);
    return item;
}

/* What is not here is the inner queue's. */
static PyObject *Queue_getattro(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(((Queue *)self)->inner, name);
}

static int Queue_traverse(Queue *self, visitproc visit, void *arg)
{
    Py_VISIT(self->state);
    Py_VISIT(self->put);
    Py_VISIT(self->get);
    Py_VISIT(self->inner);
    return 0;
}

/* No `tp_clear`, as with a hook: cycles go through dicts and what the inner queue holds, which are cleared. */
static void Queue_dealloc(Queue *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->state);
    Py_XDECREF(self->put);
    Py_XDECREF(self->get);
    Py_XDECREF(self->plan);
    Py_XDECREF(self->put_hook);
    Py_XDECREF(self->get_hook);
    Py_XDECREF(self->inner);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Queue_methods[] = {
    {"put", (PyCFunction)(void (*)(void))Queue_put, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"get", (PyCFunction)(void (*)(void))Queue_get, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Queue_members[] = {
    {"_recorder", T_OBJECT_EX, offsetof(Queue, state), READONLY, NULL},
    {"_inner", T_OBJECT_EX, offsetof(Queue, inner), READONLY, NULL},
    {"_plan", T_OBJECT_EX, offsetof(Queue, plan), READONLY, NULL},
    {"_put_hook", T_OBJECT_EX, offsetof(Queue, put_hook), READONLY, NULL},
    {"_get_hook", T_OBJECT_EX, offsetof(Queue, get_hook), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject QueueType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Queue",
    .tp_doc = "Queue(recorder, inner, plan, put, get)",
    .tp_basicsize = sizeof(Queue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = Queue_new,
    .tp_dealloc = (destructor)Queue_dealloc,
    .tp_traverse = (traverseproc)Queue_traverse,
    .tp_getattro = Queue_getattro,
    .tp_methods = Queue_methods,
    .tp_members = Queue_members,
};

#endif
