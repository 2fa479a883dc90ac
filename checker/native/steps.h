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
    return state->steps == NULL || --state->steps->count >= 0 ? 0 : count_turns((PyObject *)state->steps);
}

static inline int is_forward(PyObject *told)
{
    return told != NULL && told != Py_None;
}

/* Whether the forward of what was told has not passed yet; -1 with an error. */
static int is_open(PyObject *told)
{
    return is_forward(told) ? is_true(read_at(at_open, told)) : 0;
}

/* What is kept of the runner and of the engine, whose pool is that of the runner from now on. 1; 0, maybe with an
   error: a field of messages may be of unknown meaning. */
static HOT int kept_read(PyObject *engine, PyObject *told, Said *said)
{
    PyObject **of = said->of + OF_RUNNER;
    int i;
    for (i = at_suspects; i <= at_pool; i++)
        if ((of[i] = read_at(i, i <= at_device_pool ? engine : told)) == NULL)
            return 0;
    return PyTuple_CheckExact(of[at_suspects]) && PyTuple_GET_SIZE(of[at_suspects]) == 0 &&
           (of[at_device_pool] == of[at_pool] || PyObject_SetAttr(engine, s_device_pool, of[at_pool]) == 0);
}

/* What was taken is told. 1, or -1 with an error. */
static inline int tell(State *state, PyObject *told, const Said *said)
{
    PyObject *name = said->of[OF_RUNNER + at_name];
    Lock *lock;
    int done;
    if (write_at(at_open, told, Py_True) < 0 || state_enter(state, &lock) < 0)
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
    Said said = {.says = BIT(COMPUTED)};
    int done = 0;
    if (count_step(state) < 0)
        return NULL;
    told = keep_read(&state->keep, STEPS_OF, runner);
    if (is_forward(told) && kept_read(part(self, ENGINE), told, &said) &&
        message_read(output, all_here(state), &said) && /* without the token, which is the first */
        (done = message_taken(&said)) > 0)
        done = tell(state, told, &said);
    said_drop(&said);
    if (done > 0)
        return told;
    Py_XDECREF(told);
    return done < 0 ? NULL : begin_slowly(self, runner, output);
}

/* The line of a forward on the stream that is current, put in place. 1: it is; 0: it cannot be; -1 with an error. */
static int forward_in_place(Hook *self, PyObject *name, PyObject *step)
{
    static const char middle[] = "\xc0\xa7" "forward" "\xa6" "stream" "\xc2\xc0"; /* None, label, order, False, None */
    State *state = self->state;
    PyObject *where = part(self, SITE), *current;
    const char *letters, *site;
    size_t size, site_size;
    unsigned char *at;
    long long number;
    Text stream;
    int over = 0, on;
    if ((letters = plain(name, &size)) == NULL || !PyLong_CheckExact(step) ||
        ((site = plain(where, &site_size)) == NULL && where != Py_None))
        return 0;
    number = PyLong_AsLongLongAndOverflow(step, &over);
    if (over || (on = op_may(state)) == 0)
        return 0;
    if (on < 0)
        return -1;
    on = namer_met(self->namer, &current);
    if (on < 0) {
        Py_XDECREF(current);
        return PyErr_Occurred() ? -1 : 0;
    }
    text_copy(&stream, &self->namer->met.text[on]); /* what follows may have others met */
    if (!stream.size || (at = op_begins(state, 13, ACCESS)) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    at = put_plain(put_text(at, &stream), letters, size);
    memcpy(at, middle, sizeof(middle) - 1);
    at = put_int(at + sizeof(middle) - 1, number);
    *at++ = NONE;
    if (site != NULL)
        at = put_plain(at, site, site_size);
    else
        *at++ = NONE;
    return op_ends(state, at) < 0 ? -1 : 1;
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

/* `_log`: the line of the forward, on the stream that is current. */
static int forward_line(Hook *self, PyObject *told)
{
    PyObject *hook = read_at(at_hook, told), *messages, *name = NULL, *step = NULL;
    Lock *lock;
    int done = -1;
    if (hook == NULL)
        return -1;
    if (hook != (PyObject *)self->counter && !PyObject_TypeCheck(hook, &CounterType))
        PyErr_SetString(PyExc_TypeError, "what is told of a forward has no hook that counts");
    else if ((messages = read_at(at_messages, told)) != NULL) {
        name = read_at(at_name, told);
        step = name == NULL ? NULL : read_at(at_count, messages);
        Py_DECREF(messages);
    }
    if (step != NULL) {
        ((Counter *)hook)->count++;
        if (state_enter(self->state, &lock) >= 0) {
            done = forward_in_place(self, name, step);
            state_leave(lock);
            done = done == 0 ? forward_slowly(self, name, step) : done < 0 ? -1 : 0;
        }
        Py_DECREF(step);
    }
    Py_DECREF(hook);
    Py_XDECREF(name);
    return done;
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
    if (!PASSES(self)) {
        Py_ssize_t at = PyLong_AsSsize_t(part(self, OUTPUT_AT));
        if (PyVectorcall_NARGS(count) <= at)
            return hook_slow(self, args, count, kwnames);
        if ((told = begin(self, args[0], args[at])) == NULL && state_failed(self->state, self->where) < 0)
            return NULL;
    }
    result = hook_original(self, args, count, kwnames);
    if (result != NULL && (open = is_open(told)) != 0)
        result = unpassed(self, told, open, result);
    Py_XDECREF(told);
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
    if (result == NULL || PyVectorcall_NARGS(count) < 1)
        return result;
    told = keep_read(&self->state->keep, STEPS_OF, args[0]);
    open = is_open(told);
    if (open < 0 ||
        (open && (write_at(at_open, told, Py_False) < 0 || (self->state->on && forward_line(self, told) < 0))))
        result = hook_failed(self, result);
    Py_XDECREF(told);
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
