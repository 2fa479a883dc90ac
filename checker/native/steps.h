/* The forward of each step (`vllm/runners.py`). */

#ifndef KVSAN_STEPS_H
#define KVSAN_STEPS_H

#include "hook.h"
#include "message.h"
#include "order.h"

/* What a hook of a runner needs besides: a tuple `(engine, begin, at, dummy, where, unpassed)`. */
enum { ENGINE, BEGIN_SLOWLY, OUTPUT_AT, DUMMY_AT, SITE, UNPASSED, PARTS };

static inline PyObject *part(Hook *self, int which)
{
    return PyTuple_GET_ITEM(self->more, which);
}

static COLD int count_turns(PyObject *steps)
{
    PyObject *done;
    Py_INCREF(steps);
    done = PyObject_CallMethodNoArgs(steps, s__turn);
    Py_DECREF(steps);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* A step begins. 0 or -1 with an error. */
static inline int count_step(State *state)
{
    return RARE(state->steps == NULL) || USUAL(--state->steps->count >= 0) ? 0 : count_turns((PyObject *)state->steps);
}

static inline int is_forward(PyObject *told)
{
    return told != NULL && told != Py_None;
}

/* Whether the forward of what was told has not passed yet; -1 with an error. */
static inline int is_open(PyObject *told)
{
    PyObject *open;
    if (RARE(!is_forward(told)))
        return 0;
    open = place_peek(&places[at_open], told);
    return open == Py_False ? 0 : open == Py_True ? 1 : is_true(read_at(at_open, told));
}

/* What is kept of the runner and of the engine, whose pool is that of the runner from now on. 1; 0, maybe with an
   error: a field of messages may be of unknown meaning. */
static inline int kept_read(PyObject *engine, PyObject *told, Said *said)
{
    PyObject **of = said->of + OF_RUNNER;
    if (RARE((of[at_suspects] = read_at(at_suspects, engine)) == NULL) ||
        RARE((of[at_device_pool] = read_at(at_device_pool, engine)) == NULL) ||
        RARE((of[at_messages] = read_at(at_messages, told)) == NULL) ||
        RARE((of[at_name] = read_at(at_name, told)) == NULL) || RARE((of[at_pool] = read_at(at_pool, told)) == NULL))
        return 0;
    return USUAL(PyTuple_CheckExact(of[at_suspects]) && PyTuple_GET_SIZE(of[at_suspects]) == 0) &&
           (USUAL(of[at_device_pool] == of[at_pool]) || PyObject_SetAttr(engine, s_device_pool, of[at_pool]) == 0);
}

/* What was taken is told. 1, or -1 with an error. */
static inline int tell(State *state, PyObject *told, const Said *said)
{
    PyObject *name = said->of[OF_RUNNER + at_name];
    Lock *lock;
    int done;
    if (RARE(write_at(at_open, told, Py_True) < 0))
        return -1;
    if (USUAL(lock_is_free(state)) && USUAL(tell_at_once(state, name, said)))
        return 1;
    if (state_enter(state, &lock) < 0)
        return -1;
    if ((done = tell_in_place(state, name, said)) == 0)
        done = tell_slowly(state, name, said);
    state_leave(lock);
    return done;
}

/* What C did not take, taken in Python. */
static COLD PyObject *begin_slowly(Hook *self, PyObject *runner, PyObject *output)
{
    if (let_go() < 0)
        return NULL;
    return PyObject_CallFunctionObjArgs(part(self, BEGIN_SLOWLY), runner, output, NULL);
}

/* `_begin`: the recorder is told what the forward will touch. What hooks of it need, a new reference; `None` if there
   is no forward. */
static PyObject *begin(Hook *self, PyObject *runner, PyObject *output)
{
    State *state = self->state;
    PyObject *told;
    Said said;
    int done = 0;
    said_empty(&said);
    if (RARE(count_step(state) < 0))
        return NULL;
    told = keep_read(&state->keep, STEPS_OF, runner);
    if (USUAL(is_forward(told)) && USUAL(kept_read(part(self, ENGINE), told, &said)) &&
        USUAL(message_read(output, all_here(state), &said)) && /* without the token, which is the first */
        USUAL((done = message_taken(&said)) > 0))
        done = tell(state, told, &said);
    said_drop(&said);
    if (USUAL(done > 0))
        return told;
    Py_XDECREF(told);
    return done < 0 ? NULL : begin_slowly(self, runner, output);
}

/* What a forward's line says behind its stream up to its step, and behind that up to its time: of the one that was met last. */
static struct {
    PyObject *name, *site; /* references */
    unsigned char head[64], tail[80];
    unsigned char head_size, tail_size; /* 0: it is not to be had so */
} phrase;

static const char forward_is[] = "\xc0\xa7" "forward" "\xa6" "stream" "\xc2\xc0"; /* None, label, order, False, None */

static COLD void phrase_learn(PyObject *name, PyObject *site)
{
    const char *letters, *where;
    unsigned char *at = phrase.head;
    size_t size, site_size;
    phrase.head_size = phrase.tail_size = 0;
    letters = plain(name, &size);
    where = plain(site, &site_size);
    Py_XSETREF(phrase.name, Py_NewRef(name));
    Py_XSETREF(phrase.site, Py_NewRef(site));
    if (letters == NULL || size > TEXT_ROOM || (where == NULL && site != Py_None) || site_size > sizeof(phrase.tail) - 3)
        return;
    at = put_plain(at, letters, size);
    memcpy(at, forward_is, sizeof(forward_is) - 1);
    phrase.head_size = (unsigned char)(at + sizeof(forward_is) - 1 - phrase.head);
    at = phrase.tail;
    *at++ = NONE;
    if (where != NULL)
        at = put_plain(at, where, site_size);
    else
        *at++ = NONE;
    phrase.tail_size = (unsigned char)(at - phrase.tail);
}

/* `_log` of what is told of a forward: its line, on the stream that is current, put at once. 1: it is; 0: it is not, maybe
   with an error, and nothing has happened. */
static inline int forward_at_once(Hook *self, PyObject *told)
{
    State *state = self->state;
    PyObject *messages, *name, *step, *site = part(self, SITE);
    const Text *on;
    unsigned char *at;
    long long number;
    int over = 0;
    if (RARE(state->packed == NULL) || RARE((on = namer_at_once(self->namer, NULL)) == NULL) ||
        RARE(!lock_is_free(state))) /* PyTorch was asked: from here on nothing runs */
        return 0;
    if (RARE(Py_TYPE(told) != places[at_hook].type) || RARE(Py_TYPE(told) != places[at_messages].type) ||
        RARE(Py_TYPE(told) != places[at_name].type))
        return 0;
    messages = *place_in(&places[at_messages], told);
    name = *place_in(&places[at_name], told);
    if (RARE(*place_in(&places[at_hook], told) != (PyObject *)self->counter) || RARE(messages == NULL) ||
        RARE(name == NULL) || RARE((step = place_peek(&places[at_count], messages)) == NULL) ||
        RARE(!PyLong_CheckExact(step)))
        return 0;
    number = whole(step, &over);
    if (RARE(phrase.name != name) || RARE(phrase.site != site))
        phrase_learn(name, site);
    if (RARE(over) || RARE(!phrase.head_size) || RARE(!phrase.tail_size) ||
        RARE((at = ops_at_once(state, state_of_thread(), 1, 13)) == NULL))
        return 0;
    self->counter->count++;
    at = put_text(op_put(at, 13, ACCESS), on);
    memcpy(at, phrase.head, sizeof(phrase.head));
    at = put_wide(at + phrase.head_size, number);
    memcpy(at, phrase.tail, sizeof(phrase.tail));
    ops_are_put(state, put_long(at + phrase.tail_size, clock_now()), 1);
    return 1;
}

static COLD int forward_slowly(Hook *self, PyObject *name, PyObject *step)
{
    State *state = self->state;
    PyObject *by = NULL, *now = NULL, *on = namer_current(self->namer);
    Lock *lock;
    int done = -1;
    if (on == NULL && !PyErr_Occurred())
        on = PyObject_CallMethodOneArg(part(self, ENGINE), s_current_stream, s_compute);
    if (on == NULL || state_enter(state, &lock) < 0)
        goto done;
    if ((by = state_thread(state)) != NULL && (now = state_now(state)) != NULL &&
        state_add(state, Py_BuildValue("(lOOOOOOOOOOOO)", (long)ACCESS, by, on, name, Py_None, s_forward, s_stream,
                                       Py_False, Py_None, step, Py_None, part(self, SITE), now)) >= 0)
        done = 0;
    state_leave(lock);
done:
    Py_XDECREF(on);
    Py_XDECREF(by);
    Py_XDECREF(now);
    return done;
}

static COLD int forward_line_slowly(Hook *self, PyObject *told)
{
    PyObject *error = PyErr_Occurred() ? take_error() : NULL; /* of PyTorch, which was asked for its stream */
    PyObject *hook = read_at(at_hook, told), *messages, *name = NULL, *step = NULL;
    int done = -1;
    if (hook == NULL) {
        Py_XDECREF(error);
        return -1;
    }
    if (hook != (PyObject *)self->counter && !PyObject_TypeCheck(hook, &CounterType))
        PyErr_SetString(PyExc_TypeError, "what is told of a forward has no hook that counts");
    else if ((messages = read_at(at_messages, told)) != NULL) {
        name = read_at(at_name, told);
        step = name == NULL ? NULL : read_at(at_count, messages);
        Py_DECREF(messages);
    }
    if (step != NULL) {
        ((Counter *)hook)->count++;
        if (error == NULL)
            done = forward_slowly(self, name, step);
        else
            put_back_error(Py_NewRef(error));
        Py_DECREF(step);
    }
    Py_XDECREF(error);
    Py_DECREF(hook);
    Py_XDECREF(name);
    return done;
}

/* `_log`: the line of the forward, on the stream that is current. */
static inline int forward_line(Hook *self, PyObject *told)
{
    return USUAL(forward_at_once(self, told)) ? 0 : forward_line_slowly(self, told);
}

/* A forward that did not pass, or nobody knows (`open` < 0, with an error). What the call gives back then. */
static COLD PyObject *unpassed(Hook *self, PyObject *told, int open, PyObject *result)
{
    PyObject *done = open < 0 ? NULL : PyObject_CallFunctionObjArgs(part(self, UNPASSED), told, NULL);
    if (done == NULL)
        result = hook_failed(self, result);
    Py_XDECREF(done);
    return result;
}

/* `GPUModelRunner.execute_model(scheduler_output, …)` whose forward passes `_model_forward` */
FUNCTION(hook_execute)
{
    Hook *self = (Hook *)callable;
    PyObject *told = NULL, *result;
    int open;
    if (USUAL(!PASSES(self))) {
        int over;
        Py_ssize_t at = (Py_ssize_t)whole(part(self, OUTPUT_AT), &over);
        if (RARE(PyVectorcall_NARGS(count) <= at))
            return hook_slow(self, args, count, kwnames);
        if (RARE((told = begin(self, args[0], args[at])) == NULL) && state_failed(self->state, self->where) < 0)
            return NULL;
    }
    result = hook_original(self, args, count, kwnames);
    if (USUAL(result != NULL) && RARE((open = is_open(told)) != 0))
        result = unpassed(self, told, open, result);
    if (USUAL(told != NULL))
        let_one_go(told);
    return result;
}

/* `GPUModelRunner._model_forward(…)` */
FUNCTION(hook_forward)
{
    Hook *self = (Hook *)callable;
    PyObject *told, *result;
    int open;
    hook_fetch(self);
    result = hook_original(self, args, count, kwnames);
    if (RARE(result == NULL) || RARE(PyVectorcall_NARGS(count) < 1))
        return result;
    told = keep_read(&self->state->keep, STEPS_OF, args[0]);
    if (RARE(told == NULL) && PyErr_Occurred()) { /* the runner's own */
        Py_DECREF(result);
        return NULL;
    }
    open = is_open(told);
    if (RARE(open < 0) || (USUAL(open) && (RARE(write_at(at_open, told, Py_False) < 0) ||
                                           (USUAL(self->state->on) && RARE(forward_line(self, told) < 0)))))
        result = hook_failed(self, result);
    if (USUAL(told != NULL))
        let_one_go(told);
    return result;
}

/* `GPUModelRunner.execute_model(scheduler_output, …)` whose forward is over when it returns */
FUNCTION(hook_execute_at_end)
{
    Hook *self = (Hook *)callable;
    PyObject *told, *result;
    Py_ssize_t at = PyLong_AsSsize_t(part(self, OUTPUT_AT)), given = PyVectorcall_NARGS(count);
    if (PASSES(self))
        return hook_original(self, args, count, kwnames);
    if (kwnames != NULL || given <= at || given > PyLong_AsSsize_t(part(self, DUMMY_AT)))
        return hook_slow(self, args, count, kwnames);
    told = begin(self, args[0], args[at]);
    if (told == NULL && state_failed(self->state, self->where) < 0)
        return NULL;
    result = hook_original(self, args, count, NULL);
    if (result != NULL && is_forward(told) && self->state->on && forward_line(self, told) < 0)
        result = hook_failed(self, result);
    Py_XDECREF(told);
    return result;
}

#endif
