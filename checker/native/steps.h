/* The forward of each step (`vllm/runners.py`). */

#ifndef KVSAN_STEPS_H
#define KVSAN_STEPS_H

#include "hook.h"
#include "message.h"
#include "order.h"

/* What a hook of a runner needs besides: a tuple `(engine, begin, at, dummy, where, unpassed)`. */
enum { ENGINE, BEGIN_SLOWLY, OUTPUT_AT, DUMMY_AT, SITE, UNPASSED, PARTS };

static Place place_messages, place_pool, place_hook, place_suspects, place_open;

static inline PyObject *part(Hook *self, int which)
{
    return PyTuple_GET_ITEM(self->more, which);
}

/* A step begins. 0 or -1 with an error. */
static int count_step(State *state)
{
    Counter *steps = state->steps;
    PyObject *done;
    if (steps == NULL || --*steps->fired >= 0)
        return 0;
    Py_INCREF(steps);
    done = PyObject_CallMethodNoArgs((PyObject *)steps, s__turn);
    Py_DECREF(steps);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* `told.open = open`. 0, or -1 with an error. */
static int set_open(PyObject *told, PyObject *open)
{
    PyObject *now = place_read(&place_open, s_open, told);
    if (now == NULL)
        return -1;
    Py_DECREF(now);
    return now == open ? 0 : place_write(&place_open, s_open, told, open);
}

/* Whether the forward of what was told has not passed yet; -1 with an error. */
static int is_open(PyObject *told)
{
    return is_true(told == NULL || told == Py_None ? NULL : place_read(&place_open, s_open, told));
}

/* `engine.device_pool = pool`, which it mostly is. 0, or -1 with an error. */
static int set_pool(PyObject *engine, PyObject *pool)
{
    PyObject *now = pool_of(engine);
    if (now == NULL)
        return -1;
    Py_DECREF(now);
    return now == pool ? 0 : PyObject_SetAttr(engine, s_device_pool, pool);
}

/* `_begin`: the recorder is told what the forward will touch. What hooks of it need, a new reference; `None` if there
   is no forward. */
static PyObject *begin(Hook *self, PyObject *runner, PyObject *output)
{
    State *state = self->state;
    PyObject *engine = part(self, ENGINE), *told = NULL, *token, *suspects, *messages = NULL, *name, *pool;
    Said said = {NULL};
    Lock *lock;
    int other, done;
    if (count_step(state) < 0)
        return NULL;
    token = look_up(output, s_kvsan_token);
    other = token != NULL || PyErr_Occurred();
    Py_XDECREF(token);
    if (!other) {
        suspects = place_read(&place_suspects, s_suspects, engine);
        other = suspects == NULL || !PyTuple_CheckExact(suspects) || PyTuple_GET_SIZE(suspects) != 0;
        Py_XDECREF(suspects);
    }
    if (!other)
        told = keep_read(&state->keep, STEPS_OF, runner, s__kvsan_steps);
    if (other || told == NULL || told == Py_None || is_set(output, s_new_block_ids_to_zero) != 0)
        goto slowly;
    if ((messages = place_read(&place_messages, s_messages, told)) == NULL ||
        (done = message_taken(messages, output, &said)) == 0)
        goto slowly;
    Py_DECREF(messages);
    if (done < 0) {
        Py_DECREF(told);
        return NULL;
    }
    name = set_open(told, Py_True) < 0 ? NULL : place_read(&place_name, s_name, told);
    pool = name == NULL ? NULL : place_read(&place_pool, s_pool, told);
    if (pool == NULL || set_pool(engine, pool) < 0 || state_enter(state, &lock) < 0)
        done = -1;
    else {
        done = tell_in_place(state, name, &said);
        done = done == 0 ? tell_slowly(state, name, &said) : done < 0 ? -1 : 0;
        state_leave(lock);
    }
    said_drop(&said);
    Py_XDECREF(name);
    Py_XDECREF(pool);
    if (done < 0)
        Py_CLEAR(told);
    return told;
slowly:
    Py_XDECREF(messages);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) { /* a signal's handler raised: it is the engine's */
        Py_XDECREF(told);
        return NULL;
    }
    PyErr_Clear();
    Py_XDECREF(told);
    return PyObject_CallFunctionObjArgs(part(self, BEGIN_SLOWLY), runner, output, NULL);
}

/* The line of a forward on the stream that is current, put in place. 1: it is; 0: it cannot be; -1 with an error. */
static int forward_in_place(Hook *self, PyObject *name, PyObject *step)
{
    State *state = self->state;
    PyObject *where = part(self, SITE), *current;
    const char *letters, *site;
    size_t size, site_size;
    unsigned char *at;
    long long number;
    Text by, stream;
    int over = 0, on;
    if (!in_place(state) || (letters = plain(name, &size)) == NULL || !PyLong_CheckExact(step) ||
        ((site = plain(where, &site_size)) == NULL && where != Py_None))
        return 0;
    number = PyLong_AsLongLongAndOverflow(step, &over);
    if (over || state_thread_text(state, &by) < 0)
        return over ? 0 : -1;
    on = namer_met(self->namer, &current);
    if (on < 0) {
        Py_XDECREF(current);
        return PyErr_Occurred() ? -1 : 0;
    }
    stream = self->namer->met.text[on]; /* what follows may have others met */
    if (!in_place(state) || !by.size || !stream.size)
        return 0;
    if (state_ended(state, state->packed->count) < 0 || (at = line_begins(state, 13, ACCESS)) == NULL)
        return -1;
    at = put_plain(put_text(put_text(at, &by), &stream), letters, size);
    *at++ = NONE;
    at = put_plain(put_plain(at, "forward", 7), "stream", 6);
    *at++ = NO;
    *at++ = NONE;
    at = put_int(at, number);
    *at++ = NONE;
    if (site != NULL)
        at = put_plain(at, site, site_size);
    else
        *at++ = NONE;
    line_ends(state, put_long(at, clock_now()));
    state->count++;
    return state_full(state) < 0 ? -1 : 1;
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
    PyObject *hook = place_read(&place_hook, s_hook, told), *messages = NULL, *name = NULL, *step = NULL;
    Lock *lock;
    int done = -1;
    if (hook == NULL)
        goto done;
    if (!PyObject_TypeCheck(hook, &CounterType)) {
        PyErr_SetString(PyExc_TypeError, "what is told of a forward has no hook that counts");
        goto done;
    }
    if ((messages = place_read(&place_messages, s_messages, told)) == NULL ||
        (name = place_read(&place_name, s_name, told)) == NULL ||
        (step = place_read(&place_count, s_count, messages)) == NULL)
        goto done;
    (*((Counter *)hook)->fired)++;
    if (state_enter(self->state, &lock) < 0)
        goto done;
    done = forward_in_place(self, name, step);
    state_leave(lock);
    done = done == 0 ? forward_slowly(self, name, step) : done < 0 ? -1 : 0;
done:
    Py_XDECREF(hook);
    Py_XDECREF(messages);
    Py_XDECREF(name);
    Py_XDECREF(step);
    return done;
}

static int is_forward(PyObject *told)
{
    return told != NULL && told != Py_None;
}

/* `GPUModelRunner.execute_model(scheduler_output, …)` whose forward passes `_model_forward` */
FUNCTION(hook_execute)
{
    Hook *self = (Hook *)callable;
    PyObject *told, *result, *done;
    int open;
    Py_ssize_t at = PyLong_AsSsize_t(part(self, OUTPUT_AT));
    if (PASSES(self))
        return hook_original(self, args, count, kwnames);
    if (PyVectorcall_NARGS(count) <= at)
        return hook_slow(self, args, count, kwnames);
    told = begin(self, args[0], args[at]);
    if (told == NULL && state_failed(self->state, self->where) < 0)
        return NULL;
    result = hook_original(self, args, count, kwnames);
    if (result != NULL && (open = is_open(told)) != 0) { /* a forward that did not pass */
        done = open < 0 ? NULL : PyObject_CallFunctionObjArgs(part(self, UNPASSED), told, NULL);
        if (done == NULL)
            result = hook_failed(self, result);
        Py_XDECREF(done);
    }
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
    told = keep_read(&self->state->keep, STEPS_OF, args[0], s__kvsan_steps);
    open = is_open(told);
    if (open < 0 || (open && (set_open(told, Py_False) < 0 || (self->state->on && forward_line(self, told) < 0))))
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
