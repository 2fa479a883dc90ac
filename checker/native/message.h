/* What the message of each step says (`vllm/steps.py`: `Messages`): usually that the same requests go on by a token each,
   now and then that some are new or have finished. */

#ifndef KVSAN_MESSAGE_H
#define KVSAN_MESSAGE_H

#include "in_place.h"

static Place place_before, place_count, place_name;

/* Lists, each a new reference: those whose requests go on, which blocks they got, and how many of their tokens are computed.
   NULL where there are none: who has finished, `[(name, [[id, …], …], computed), …]` of new ones. NULL where both are as in
   the message before: the names of all that go on, of all that are scheduled, and how many tokens these have. */
typedef struct {
    PyObject *names, *more, *computed, *finished, *fresh, *goes_on, *scheduled, *tokens;
} Said;

static void said_drop(Said *said)
{
    Py_CLEAR(said->names);
    Py_CLEAR(said->more);
    Py_CLEAR(said->computed);
    Py_CLEAR(said->finished);
    Py_CLEAR(said->fresh);
    Py_CLEAR(said->goes_on);
    Py_CLEAR(said->scheduled);
    Py_CLEAR(said->tokens);
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

/* A list of lists, each copied; NULL with an error. */
static PyObject *copied(PyObject *lists)
{
    PyObject *made = PySequence_List(lists);
    Py_ssize_t group;
    for (group = 0; made != NULL && group < PyList_GET_SIZE(made); group++) {
        PyObject *copy = PySequence_List(PyList_GET_ITEM(made, group));
        if (copy == NULL || PyList_SetItem(made, group, copy) < 0)
            Py_CLEAR(made);
    }
    return made;
}

/* `[(name, [list, …]), …]` of the requests that got blocks, `()` if none did. */
static COLD PyObject *grown(PyObject *names, PyObject *more)
{
    PyObject *out = NULL;
    Py_ssize_t i;
    for (i = 0; i < PyList_GET_SIZE(more); i++) {
        PyObject *ids = PyList_GET_ITEM(more, i), *lists, *pair;
        int some, done;
        if (ids == Py_None)
            continue;
        Py_INCREF(ids); /* its code may change the lists */
        some = PyObject_IsTrue(ids);
        lists = some == 1 ? copied(ids) : NULL;
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

/* `(name, [[id, …], …], computed)` of a new request; NULL, maybe with an error, if it is not of the usual sorts. */
static COLD PyObject *fresh_one(PyObject *one)
{
    PyObject *name = look_up(one, s_req_id), *ids = NULL, *computed = NULL, *lists = NULL, *made = NULL;
    Py_ssize_t group;
    if (name == NULL || !PyUnicode_CheckExact(name) || (ids = look_up(one, s_block_ids)) == NULL ||
        !(PyTuple_CheckExact(ids) || PyList_CheckExact(ids)) ||
        (computed = look_up(one, s_num_computed_tokens)) == NULL || !PyLong_CheckExact(computed))
        goto done;
    for (group = 0; group < PySequence_Fast_GET_SIZE(ids); group++)
        if (!PyList_CheckExact(PySequence_Fast_GET_ITEM(ids, group)))
            goto done;
    if ((lists = copied(ids)) != NULL)
        made = PyTuple_Pack(3, name, lists, computed);
done:
    Py_XDECREF(name);
    Py_XDECREF(ids);
    Py_XDECREF(computed);
    Py_XDECREF(lists);
    return made;
}

/* Who is new, if anybody. 1; 0 if that is not of the usual sorts, maybe with an error. */
static int fresh_ones(PyObject *output, Said *said)
{
    PyObject *all = list_of(output, s_scheduled_new_reqs), *one;
    Py_ssize_t i;
    int usual = all != NULL;
    if (usual && PyList_GET_SIZE(all) > 0)
        usual = (said->fresh = PyList_New(0)) != NULL;
    for (i = 0; usual && i < PyList_GET_SIZE(all); i++) {
        PyObject *request = Py_NewRef(PyList_GET_ITEM(all, i)); /* its attributes may change the list */
        one = fresh_one(request);
        Py_DECREF(request);
        usual = one != NULL && PyList_Append(said->fresh, one) == 0;
        Py_XDECREF(one);
    }
    Py_XDECREF(all);
    return usual;
}

/* Who has finished, if anybody. The same. */
static int finished_ones(PyObject *output, Said *said)
{
    PyObject *all = look_up(output, s_finished_req_ids);
    int usual = all != NULL && PyAnySet_CheckExact(all);
    if (usual && PySet_GET_SIZE(all) > 0)
        usual = (said->finished = PySequence_List(all)) != NULL;
    Py_XDECREF(all);
    return usual;
}

/* Whether `_before` says the same; if not, what it will say. 1; 0 if it is not as usual, maybe with an error. */
static int compared(PyObject *messages, PyObject *scheduled, Said *said)
{
    PyObject *before = place_read(&place_before, s__before, messages);
    int same = 1, usual = 0;
    if (before == NULL || !PyTuple_CheckExact(before) || PyTuple_GET_SIZE(before) != 3 ||
        !PyList_CheckExact(PyTuple_GET_ITEM(before, 0)) || !PyList_CheckExact(PyTuple_GET_ITEM(before, 1)) ||
        !PyList_CheckExact(PyTuple_GET_ITEM(before, 2)) ||
        (same = PyObject_RichCompareBool(said->names, PyTuple_GET_ITEM(before, 0), Py_EQ)) < 0 ||
        (same && (same = dict_is(scheduled, PyTuple_GET_ITEM(before, 1), PyTuple_GET_ITEM(before, 2))) < 0))
        goto done;
    usual = same || ((said->goes_on = PySequence_List(said->names)) != NULL &&
                     (said->scheduled = PyDict_Keys(scheduled)) != NULL &&
                     (said->tokens = PyDict_Values(scheduled)) != NULL);
done:
    Py_XDECREF(before);
    return usual;
}

/* One more message had a forward, and `_before` says what it says. 0, or -1 with an error. */
static int noted(PyObject *messages, const Said *said)
{
    PyObject *count = place_read(&place_count, s_count, messages), *one, *now;
    int done = -1;
    if (count == NULL)
        return -1;
    one = PyLong_FromSsize_t(PyLong_AsSsize_t(count) + 1);
    Py_DECREF(count);
    if (one != NULL && !PyErr_Occurred())
        done = place_write(&place_count, s_count, messages, one);
    Py_XDECREF(one);
    if (done < 0 || said->goes_on == NULL)
        return done;
    if ((now = PyTuple_Pack(3, said->goes_on, said->scheduled, said->tokens)) == NULL)
        return -1;
    done = place_write(&place_before, s__before, messages, now);
    Py_DECREF(now);
    return done;
}

/* `Messages.take` of a message that has a forward, resumes nobody and is of the usual sorts. 1: that is so; 0: it is not, with
   or without an error, and nothing was taken; -1 with an error. */
static int message_taken(PyObject *messages, PyObject *output, Said *said)
{
    PyObject *cached = NULL, *scheduled = look_up(output, s_num_scheduled_tokens);
    int usual = scheduled != NULL && PyDict_CheckExact(scheduled) && PyDict_GET_SIZE(scheduled) > 0 &&
                is_set(messages, s__crosses) == 0 && fresh_ones(output, said) && finished_ones(output, said) &&
                (cached = look_up(output, s_scheduled_cached_reqs)) != NULL &&
                is_set(cached, s_resumed_req_ids) == 0 && (said->names = list_of(cached, s_req_ids)) != NULL &&
                (said->more = list_of(cached, s_new_block_ids)) != NULL &&
                (said->computed = list_of(cached, s_num_computed_tokens)) != NULL &&
                PyList_GET_SIZE(said->more) == PyList_GET_SIZE(said->names) && compared(messages, scheduled, said);
    Py_XDECREF(scheduled);
    Py_XDECREF(cached);
    if (usual && noted(messages, said) < 0)
        usual = -1;
    if (usual != 1)
        said_drop(said);
    return usual;
}

/* Requests that got blocks, and which: `[(name, [list, …]), …]`. 0, -1 with an error, 1 for what has no form here. */
static int pack_grown(Packed *packed, const Said *said)
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

/* A list, or what stands for none. */
static int pack_list(Packed *packed, PyObject *list, unsigned char none)
{
    return list == NULL ? pack_bytes(packed, (const char *)&none, 1) : pack_value(packed, list, 1);
}

/* The items of `Message`: finished, new, cached, more, resumed, computed, scheduled, tokens, encoded. As `pack_grown`. */
static int pack_said(Packed *packed, const Said *said)
{
    enum { NOBODY = 0x90 };
    int done;
    if ((done = pack_list(packed, said->finished, NOBODY)) == 0 && (done = pack_list(packed, said->fresh, NOBODY)) == 0 &&
        (done = pack_list(packed, said->goes_on, NONE)) == 0 && (done = pack_grown(packed, said)) == 0 &&
        (done = pack_list(packed, NULL, NOBODY)) == 0 && (done = pack_list(packed, said->computed, NOBODY)) == 0 &&
        (done = pack_list(packed, said->scheduled, NONE)) == 0 && (done = pack_list(packed, said->tokens, NONE)) == 0)
        done = pack_list(packed, NULL, NOBODY);
    return done;
}

/* The message for whoever follows under that name, in its turn among the lines, put in place. 1: it is; 0: it cannot be; -1
   with an error. */
static int tell_in_place(State *state, PyObject *name, const Said *said)
{
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
    *at++ = 0x99;
    packed->used = (size_t)(at - packed->bytes);
    if ((done = pack_said(packed, said)) != 0) { /* nothing ran meanwhile */
        packed->used = before;
        return done < 0 ? -1 : 0;
    }
    packed->count++;
    if (state_waiting(state) >= state->batch && state_settle_up(state) < 0)
        return -1;
    return 1;
}

static PyObject *or_none(PyObject *list)
{
    return list == NULL ? Py_None : list;
}

/* The same as a line that is made. 0, or -1 with an error. */
static COLD int tell_slowly(State *state, PyObject *name, const Said *said)
{
    PyObject *got = grown(said->names, said->more), *nobody = PyList_New(0), *message = NULL;
    if (got != NULL && nobody != NULL)
        message = Py_BuildValue("(OOOOONOOO)", said->finished == NULL ? nobody : said->finished,
                                said->fresh == NULL ? nobody : said->fresh, or_none(said->goes_on), got, nobody,
                                PyList_GetSlice(said->computed, 0, PyList_GET_SIZE(said->computed)),
                                or_none(said->scheduled), or_none(said->tokens), nobody);
    Py_XDECREF(got);
    Py_XDECREF(nobody);
    return state_tell(state, name, message);
}

#endif
