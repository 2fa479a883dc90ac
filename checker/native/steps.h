/* The forward of each step (`vllm/runners.py`), and what its message says (`vllm/steps.py`): usually that the same
   requests go on by a token each. */

#ifndef KVSAN_STEPS_H
#define KVSAN_STEPS_H

#include "hook.h"
#include "order.h"

/* What a hook of a runner needs besides: a tuple `(engine, begin, at, dummy, where, log)`. */
enum { ENGINE, BEGIN_SLOWLY, OUTPUT_AT, DUMMY_AT, SITE, LOG_SLOWLY, PARTS };

static inline PyObject *part(Hook *self, int which)
{
    return PyTuple_GET_ITEM(self->more, which);
}

/* Whether a dict's keys and values are those of two lists, in order. -1 with an error. */
static int dict_is(PyObject *dict, PyObject *keys, PyObject *values)
{
    PyObject *key, *value;
    Py_ssize_t at = 0, i = 0;
    int same = PyDict_GET_SIZE(dict) == PyList_GET_SIZE(keys) && PyList_GET_SIZE(keys) == PyList_GET_SIZE(values);
    while (same == 1 && PyDict_Next(dict, &at, &key, &value)) {
        same = i < PyList_GET_SIZE(keys) && i < PyList_GET_SIZE(values);
        if (same == 1 && (key != PyList_GET_ITEM(keys, i) || value != PyList_GET_ITEM(values, i))) {
            /* comparing runs their code, which may change all four */
            PyObject *with[] = {Py_NewRef(PyList_GET_ITEM(keys, i)), Py_NewRef(PyList_GET_ITEM(values, i))};
            Py_INCREF(key);
            Py_INCREF(value);
            same = PyObject_RichCompareBool(key, with[0], Py_EQ);
            if (same == 1)
                same = PyObject_RichCompareBool(value, with[1], Py_EQ);
            Py_DECREF(key);
            Py_DECREF(value);
            Py_DECREF(with[0]);
            Py_DECREF(with[1]);
        }
        i++;
    }
    return same;
}

/* `[(name, [list, …]), …]` of the requests that got blocks, `()` if none did. */
static COLD PyObject *grown(PyObject *names, PyObject *more)
{
    PyObject *out = NULL;
    Py_ssize_t i, group;
    for (i = 0; i < PyList_GET_SIZE(more); i++) {
        PyObject *ids = PyList_GET_ITEM(more, i), *lists, *pair;
        int some, done;
        if (ids == Py_None)
            continue;
        Py_INCREF(ids); /* its code may change the lists */
        some = PyObject_IsTrue(ids);
        lists = some == 1 ? PySequence_List(ids) : NULL;
        Py_DECREF(ids);
        if (some == 0)
            continue;
        if (lists == NULL)
            goto failed;
        if ((out == NULL && (out = PyList_New(0)) == NULL) || i >= PyList_GET_SIZE(names)) {
            if (out != NULL)
                PyErr_SetString(PyExc_RuntimeError, "the lists changed");
            Py_DECREF(lists);
            goto failed;
        }
        for (group = 0; group < PyList_GET_SIZE(lists); group++) {
            PyObject *copy = PySequence_List(PyList_GET_ITEM(lists, group));
            if (copy == NULL || PyList_SetItem(lists, group, copy) < 0) {
                Py_DECREF(lists);
                goto failed;
            }
        }
        if ((pair = Py_BuildValue("(ON)", PyList_GET_ITEM(names, i), lists)) == NULL)
            goto failed;
        done = PyList_Append(out, pair);
        Py_DECREF(pair);
        if (done < 0)
            goto failed;
    }
    return out == NULL ? PyTuple_New(0) : out;
failed:
    Py_XDECREF(out);
    return NULL;
}

/* An attribute that must be a list, a new reference; NULL without an error if it is none. */
static PyObject *list_of(PyObject *object, PyObject *name)
{
    PyObject *found = look_up(object, name);
    if (found != NULL && !PyList_CheckExact(found))
        Py_CLEAR(found);
    return found;
}

static Place place_before, place_count, place_messages, place_name, place_pool, place_hook, place_suspects, place_device_pool;

/* What a usual message says: lists, each a new reference. */
typedef struct {
    PyObject *names, *more, *computed;
} Usual;

static void usual_drop(Usual *said)
{
    Py_CLEAR(said->names);
    Py_CLEAR(said->more);
    Py_CLEAR(said->computed);
}

/* `Messages.take` where the requests are those of the step before and none is new, finished or resumed, and one more is
   counted. 1: that is so; 0: it is not, with or without an error. */
static int usual_message(PyObject *messages, PyObject *output, Usual *said)
{
    PyObject *cached = NULL, *names = NULL, *more = NULL, *computed = NULL, *before = NULL;
    PyObject *scheduled = look_up(output, s_num_scheduled_tokens), *count, *one;
    int other, usual = 0;
    if (scheduled == NULL || !PyDict_CheckExact(scheduled) || PyDict_GET_SIZE(scheduled) == 0)
        goto done;
    if ((other = is_set(output, s_scheduled_new_reqs)) == 0 && (other = is_set(output, s_finished_req_ids)) == 0)
        other = is_set(messages, s__crosses);
    if (other != 0 || (cached = look_up(output, s_scheduled_cached_reqs)) == NULL ||
        is_set(cached, s_resumed_req_ids) != 0 || (names = list_of(cached, s_req_ids)) == NULL ||
        (more = list_of(cached, s_new_block_ids)) == NULL ||
        (computed = list_of(cached, s_num_computed_tokens)) == NULL ||
        PyList_GET_SIZE(more) != PyList_GET_SIZE(names))
        goto done;
    before = place_read(&place_before, s__before, messages);
    if (before == NULL || !PyTuple_CheckExact(before) || PyTuple_GET_SIZE(before) != 3 ||
        !PyList_CheckExact(PyTuple_GET_ITEM(before, 0)) || !PyList_CheckExact(PyTuple_GET_ITEM(before, 1)) ||
        !PyList_CheckExact(PyTuple_GET_ITEM(before, 2)) ||
        PyObject_RichCompareBool(names, PyTuple_GET_ITEM(before, 0), Py_EQ) != 1 ||
        dict_is(scheduled, PyTuple_GET_ITEM(before, 1), PyTuple_GET_ITEM(before, 2)) != 1)
        goto done;
    if ((count = place_read(&place_count, s_count, messages)) == NULL)
        goto done;
    one = PyLong_FromSsize_t(PyLong_AsSsize_t(count) + 1);
    Py_DECREF(count);
    if (one != NULL && !PyErr_Occurred() && place_write(&place_count, s_count, messages, one) == 0) {
        said->names = Py_NewRef(names);
        said->more = Py_NewRef(more);
        said->computed = Py_NewRef(computed);
        usual = 1;
    }
    Py_XDECREF(one);
done:
    Py_XDECREF(scheduled);
    Py_XDECREF(cached);
    Py_XDECREF(names);
    Py_XDECREF(more);
    Py_XDECREF(computed);
    Py_XDECREF(before);
    return usual;
}

/* Requests that got blocks, and which: `[(name, [list, …]), …]`. 0, -1 with an error, 1 for what has no form here. */
static int pack_grown(Packed *packed, const Usual *said)
{
    Py_ssize_t i, count = PyList_GET_SIZE(said->names), some = 0;
    int done;
    if (PyList_GET_SIZE(said->more) != count)
        return 1;
    for (i = 0; i < count; i++) {
        PyObject *ids = PyList_GET_ITEM(said->more, i);
        if (ids != Py_None && !PyTuple_CheckExact(ids) && !PyList_CheckExact(ids))
            return 1;
        some += ids != Py_None && PySequence_Fast_GET_SIZE(ids) > 0;
    }
    done = pack_head(packed, (size_t)some, 0x90, 15, 0, 0xdc, 0xdd);
    for (i = 0; done == 0 && some > 0 && i < count; i++) {
        PyObject *ids = PyList_GET_ITEM(said->more, i);
        if (ids == Py_None || PySequence_Fast_GET_SIZE(ids) == 0)
            continue;
        if ((done = pack_head(packed, 2, 0x90, 15, 0, 0xdc, 0xdd)) == 0 &&
            (done = pack_value(packed, PyList_GET_ITEM(said->names, i), 1)) == 0)
            done = pack_value(packed, ids, 1);
    }
    return done;
}

/* The message for whoever follows under that name, in its turn among the lines, put in place. 1: it is; 0: it cannot be; -1
   with an error. */
static int tell_in_place(State *state, PyObject *name, const Usual *said)
{
    static const unsigned char first[] = {0x99, 0x90, 0x90, 0xc0}, last[] = {0xc0, 0xc0, 0x90};
    Packed *packed;
    const char *letters;
    unsigned char *at;
    size_t size, before;
    int done;
    if (!in_place(state) || (letters = plain(name, &size)) == NULL || size > TEXT_ROOM)
        return 0;
    if ((at = line_begins(state, 3, TOLD)) == NULL)
        return -1;
    packed = state->packed;
    before = packed->used;
    at = put_plain(at, letters, size);
    memcpy(at, first, sizeof(first));
    packed->used = (size_t)(at + sizeof(first) - packed->bytes);
    /* `Message`: finished, new, cached, more, resumed, computed, scheduled, tokens, encoded; nothing runs meanwhile */
    if ((done = pack_grown(packed, said)) == 0 && (done = pack_head(packed, 0, 0x90, 15, 0, 0xdc, 0xdd)) == 0 &&
        (done = pack_value(packed, said->computed, 1)) == 0)
        done = pack_bytes(packed, (const char *)last, sizeof(last));
    if (done != 0) {
        packed->used = before;
        return done < 0 ? -1 : 0;
    }
    packed->count++;
    if (state_waiting(state) >= state->batch && state_settle_up(state) < 0)
        return -1;
    return 1;
}

/* The same as a line that is made. 0, or -1 with an error. */
static COLD int tell_slowly(State *state, PyObject *name, const Usual *said)
{
    PyObject *got, *message;
    if ((got = grown(said->names, said->more)) == NULL)
        return -1;
    message = Py_BuildValue("(()()ON()NOO())", Py_None, got,
                            PyList_GetSlice(said->computed, 0, PyList_GET_SIZE(said->computed)), Py_None, Py_None);
    return state_tell(state, name, message);
}

/* A step begins. 0 or -1 with an error. */
static int count_step(State *state)
{
    Counter *steps = state->steps;
    PyObject *done;
    if (steps == NULL || --steps->count >= 0)
        return 0;
    Py_INCREF(steps);
    done = PyObject_CallMethodNoArgs((PyObject *)steps, s__turn);
    Py_DECREF(steps);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* `engine.device_pool = pool`, which it mostly is. 0, or -1 with an error. */
static int set_pool(PyObject *engine, PyObject *pool)
{
    PyObject *now = place_read(&place_device_pool, s_device_pool, engine);
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
    Usual said = {NULL, NULL, NULL};
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
        told = look_up(runner, s__kvsan_steps);
    if (other || told == NULL || told == Py_None || is_set(output, s_new_block_ids_to_zero) != 0)
        goto slowly;
    if ((messages = place_read(&place_messages, s_messages, told)) == NULL || !usual_message(messages, output, &said))
        goto slowly;
    Py_DECREF(messages);
    name = place_read(&place_name, s_name, told);
    pool = name == NULL ? NULL : place_read(&place_pool, s_pool, told);
    if (pool == NULL || set_pool(engine, pool) < 0 || state_enter(state, &lock) < 0)
        done = -1;
    else {
        done = tell_in_place(state, name, &said);
        done = done == 0 ? tell_slowly(state, name, &said) : done < 0 ? -1 : 0;
        state_leave(lock);
    }
    usual_drop(&said);
    Py_XDECREF(name);
    Py_XDECREF(pool);
    if (done < 0)
        Py_CLEAR(told);
    return told;
slowly:
    PyErr_Clear();
    Py_XDECREF(told);
    Py_XDECREF(messages);
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
    ((Counter *)hook)->count++;
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
    PyObject *told, *open;
    Py_ssize_t at = PyLong_AsSsize_t(part(self, OUTPUT_AT));
    if (PASSES(self))
        return hook_original(self, args, count, kwnames);
    if (PyVectorcall_NARGS(count) <= at)
        return hook_slow(self, args, count, kwnames);
    told = begin(self, args[0], args[at]);
    if (told == NULL || PyObject_SetAttr(args[0], s__kvsan_open, told) < 0) {
        Py_XDECREF(told);
        if (state_failed(self->state, self->where) < 0)
            return NULL;
    } else
        Py_DECREF(told);
    told = hook_original(self, args, count, kwnames);
    if (told != NULL) { /* what the engine gave back */
        open = look_up(args[0], s__kvsan_open);
        if (is_forward(open)) { /* a forward that did not pass */
            PyObject *done = PyObject_CallFunctionObjArgs(part(self, LOG_SLOWLY), args[0], NULL);
            if (done == NULL)
                told = hook_failed(self, told);
            Py_XDECREF(done);
        } else if (open == NULL && PyErr_Occurred())
            told = hook_failed(self, told);
        Py_XDECREF(open);
    }
    return told;
}

/* `GPUModelRunner._model_forward(…)` */
FUNCTION(hook_forward)
{
    Hook *self = (Hook *)callable;
    PyObject *told, *result;
    hook_fetch(self);
    result = hook_original(self, args, count, kwnames);
    if (result == NULL || PyVectorcall_NARGS(count) < 1)
        return result;
    told = look_up(args[0], s__kvsan_open);
    if (is_forward(told)) {
        if (PyObject_SetAttr(args[0], s__kvsan_open, Py_None) < 0 || (self->state->on && forward_line(self, told) < 0))
            result = hook_failed(self, result);
    } else if (PyErr_Occurred())
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
