/* What the message of each step says (`vllm/steps.py`: `Messages`): usually that the same requests go on by a token each,
   now and then that some are new or have finished. */

#ifndef KVSAN_MESSAGE_H
#define KVSAN_MESSAGE_H

#include "in_place.h"

/* What a message is asked for, in that order, and what it says, in the order of `steps.Message`: from FINISHED to COMPUTED
   they are the same. `NOW`: what `_before` will be, NULL if it says the same already. Last what kvsan has of the runner.
   All are references, or NULL. */
enum {
    TOKEN = asks_kvsan_token,
    ZEROED = asks_new_block_ids_to_zero,
    TOKENS_OF = asks_num_scheduled_tokens,
    CACHED = asks_scheduled_cached_reqs,
    FINISHED = asks_finished_req_ids,
    FRESH = asks_scheduled_new_reqs,
    GOES_ON = asks_req_ids,
    MORE = asks_new_block_ids,
    RESUMED = asks_resumed_req_ids,
    COMPUTED = asks_num_computed_tokens,
    SCHEDULED,
    TOKENS,
    ENCODED,
    NOW,
    OF_RUNNER,
    MESSAGES = OF_RUNNER + at_messages,
    SAID = OF_RUNNER + at_pool + 1
};

/* `says`: a bit for each that is said. GOES_ON, SCHEDULED and TOKENS are not where they are as before. */
typedef struct {
    PyObject *of[SAID];
    unsigned says;
} Said;

#define BIT(which) (1u << (which))

/* Nothing is said yet; stores one after the other, where compilers may prefer a loop of the processor's. */
static INTO_EACH void said_empty(Said *said)
{
    int i;
#ifdef __GNUC__
#pragma GCC unroll 32
#endif
    for (i = 0; i < SAID; i++)
        said->of[i] = NULL;
    said->says = BIT(COMPUTED);
}

static inline void said_drop(Said *said)
{
    int i;
    for (i = 0; i < SAID; i++)
        if (said->of[i] != NULL)
            let_one_go(said->of[i]);
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

/* `(name, [[id, …], …], computed)` of a new request; NULL, maybe with an error, if it is not of the usual sorts. */
static COLD PyObject *fresh_one(PyObject *one)
{
    PyObject *name = look_up(one, s_req_id), *ids = NULL, *computed = NULL, *lists = NULL, *made = NULL;
    Py_ssize_t group;
    if (name == NULL || !PyUnicode_CheckExact(name) || (ids = look_up(one, s_block_ids)) == NULL ||
        !(PyTuple_CheckExact(ids) || PyList_CheckExact(ids)) ||
        (computed = look_up(one, asked[asks_num_computed_tokens])) == NULL || !PyLong_CheckExact(computed))
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

/* Who is new and who has finished. 1; 0 if that is not of the usual sorts, maybe with an error. */
static COLD int news(Said *said)
{
    PyObject *all = said->of[FRESH], *fresh = PyList_New(0), *finished = PySequence_List(said->of[FINISHED]), *one;
    Py_ssize_t i;
    int usual = fresh != NULL && finished != NULL;
    for (i = 0; usual && i < PyList_GET_SIZE(all); i++) {
        PyObject *request = Py_NewRef(PyList_GET_ITEM(all, i)); /* its attributes may change the list */
        one = fresh_one(request);
        Py_DECREF(request);
        usual = one != NULL && PyList_Append(fresh, one) == 0;
        Py_XDECREF(one);
    }
    said->says |= BIT(FRESH) | BIT(FINISHED);
    said->of[FRESH] = fresh;
    Py_XSETREF(said->of[FINISHED], finished);
    Py_DECREF(all);
    return usual;
}

/* Whether a list has the very items of another one. */
static int same_items(PyObject *list, PyObject *other)
{
    Py_ssize_t i = PyList_GET_SIZE(list);
    if (!PyList_CheckExact(other) || PyList_GET_SIZE(other) != i)
        return 0;
    while (--i >= 0 && PyList_GET_ITEM(list, i) == PyList_GET_ITEM(other, i))
        ;
    return i < 0;
}

/* Whether `_before` says the very same. Pointers are compared, and nobody's code runs. */
static inline int is_as_before(PyObject *before, Said *said)
{
    PyObject **was[3], *key, *value;
    Py_ssize_t size = PyDict_GET_SIZE(said->of[TOKENS_OF]), i, at = 0;
    if (!PyTuple_CheckExact(before) || PyTuple_GET_SIZE(before) != 3 ||
        !same_items(said->of[GOES_ON], PyTuple_GET_ITEM(before, 0)))
        return 0;
    for (i = 1; i < 3; i++) {
        PyObject *list = PyTuple_GET_ITEM(before, i);
        if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) != size)
            return 0;
        was[i] = ((PyListObject *)list)->ob_item;
    }
    for (i = 0; PyDict_Next(said->of[TOKENS_OF], &at, &key, &value); i++)
        if (key != was[1][i] || value != was[2][i])
            return 0;
    return 1;
}

/* Whether it says the same, as Python compares them; if not, what it will say. 0, or -1 with an error. */
static COLD int compared(PyObject *before, Said *said)
{
    PyObject *names = PySequence_List(said->of[GOES_ON]), *now = NULL;
    int same = -1;
    said->of[SCHEDULED] = PyDict_Keys(said->of[TOKENS_OF]);
    said->of[TOKENS] = PyDict_Values(said->of[TOKENS_OF]);
    if (names != NULL && said->of[SCHEDULED] != NULL && same_items(names, said->of[SCHEDULED]))
        Py_SETREF(said->of[SCHEDULED], Py_NewRef(names)); /* one list to look at */
    if (names != NULL && said->of[SCHEDULED] != NULL && said->of[TOKENS] != NULL)
        now = PyTuple_Pack(3, names, said->of[SCHEDULED], said->of[TOKENS]);
    if (now != NULL && (same = PyObject_RichCompareBool(now, before, Py_EQ)) == 0) {
        said->says |= BIT(GOES_ON) | BIT(SCHEDULED) | BIT(TOKENS);
        said->of[NOW] = Py_NewRef(now);
        Py_SETREF(said->of[GOES_ON], Py_NewRef(names));
    }
    Py_XDECREF(names);
    Py_XDECREF(now);
    return same < 0 ? -1 : 0;
}

/* One more message had a forward, and `_before` says what it says. 0, or -1 with an error. */
static inline int noted(const Said *said)
{
    PyObject *messages = said->of[MESSAGES], *now = said->of[NOW], *count = read_at(at_count, messages), *one;
    long long so_far;
    int done = -1, over = 1;
    if (RARE(count == NULL))
        return -1;
    if (USUAL(PyLong_CheckExact(count)) && (so_far = whole(count, &over), USUAL(!over)))
        one = PyLong_FromLongLong(so_far + 1);
    else {
        one = PyLong_FromSsize_t(PyLong_AsSsize_t(count) + 1);
        if (PyErr_Occurred())
            Py_CLEAR(one);
    }
    let_one_go(count);
    if (USUAL(one != NULL)) {
        done = write_at(at_count, messages, one);
        let_one_go(one);
    }
    return USUAL(done == 0) && RARE(now != NULL) ? write_at(at__before, messages, now) : done;
}

/* Whether what was found, of another class than usual, will do. */
static COLD int will_do(int which, PyObject *found)
{
    enum { MAY_LACK = BIT(TOKEN) | BIT(ZEROED) | BIT(RESUMED), EMPTY = BIT(ZEROED) | BIT(RESUMED) };
    if (found == NULL)
        return BIT(which) & MAY_LACK && !PyErr_Occurred();
    return which == TOKEN || (BIT(which) & EMPTY && PyObject_IsTrue(found) == 0);
}

/* All that a message is asked for, but for what stands before `from`. 1 if it is of the usual sorts; 0 if not, maybe with
   an error. */
static inline int message_read(PyObject *output, int from, Said *said)
{
    static PyTypeObject *const sorts[ASKED] = { /* the usual ones; of ZEROED it is None, of CACHED any */
        [TOKENS_OF] = &PyDict_Type, [FINISHED] = &PySet_Type, [FRESH] = &PyList_Type,    [GOES_ON] = &PyList_Type,
        [MORE] = &PyList_Type,      [RESUMED] = &PySet_Type,  [COMPUTED] = &PyList_Type,
    };
    int i;
    for (i = from; i < ASKED; i++) {
        PyObject *found = said->of[i] = look_up(i < GOES_ON ? output : said->of[CACHED], asked[i]);
        int usual = found != NULL && (i == CACHED || (i == ZEROED ? found == Py_None : Py_TYPE(found) == sorts[i]));
        if (RARE(!usual) && RARE(!will_do(i, found)))
            return 0;
    }
    return USUAL(said->of[TOKEN] == NULL) && USUAL(PyDict_GET_SIZE(said->of[TOKENS_OF]) > 0) &&
           USUAL(said->of[RESUMED] == NULL || !PySet_CheckExact(said->of[RESUMED]) ||
                 PySet_GET_SIZE(said->of[RESUMED]) == 0) &&
           USUAL(PyList_GET_SIZE(said->of[MORE]) == PyList_GET_SIZE(said->of[GOES_ON]));
}

/* `Messages.take` of such a message. 1; 0: it is not so usual, maybe with an error, and nothing was taken; -1 with an
   error. */
static HOT int message_taken(Said *said)
{
    PyObject *before, *crosses = place_peek(&places[at__crosses], said->of[MESSAGES]);
    int done = USUAL(crosses == Py_False) ? 0 : is_true(read_at(at__crosses, said->of[MESSAGES]));
    if (RARE(done != 0) ||
        (RARE(PyList_GET_SIZE(said->of[FRESH]) + PySet_GET_SIZE(said->of[FINISHED]) > 0) && !news(said)) ||
        RARE((before = read_at(at__before, said->of[MESSAGES])) == NULL))
        return 0;
    done = USUAL(is_as_before(before, said)) ? 0 : compared(before, said);
    let_one_go(before);
    if (RARE(done < 0))
        return 0;
    return RARE(noted(said) < 0) ? -1 : 1;
}

/* Whether a request got blocks; -1 for what has no form here. */
static int grew(PyObject *ids)
{
    if (ids == Py_None)
        return 0;
    return PyTuple_CheckExact(ids) || PyList_CheckExact(ids) ? PySequence_Fast_GET_SIZE(ids) > 0 : -1;
}

/* Requests that got blocks, and which: `[(name, [list, …]), …]`. 0, -1 with an error, 1 for what has no form here. */
static int pack_grown(Packed *packed, const Said *said)
{
    PyObject *names = said->of[GOES_ON], *more = said->of[MORE];
    Py_ssize_t i, count = PyList_GET_SIZE(names), some = 0;
    int done;
    if (PyList_GET_SIZE(more) != count)
        return 1;
    for (i = 0; i < count; i++) {
        if ((done = grew(PyList_GET_ITEM(more, i))) < 0)
            return 1;
        some += done;
    }
    done = pack_list(packed, some);
    for (i = 0; done == 0 && some > 0; i++)
        if (grew(PyList_GET_ITEM(more, i))) {
            some--;
            if ((done = pack_list(packed, 2)) == 0 && (done = pack_value(packed, PyList_GET_ITEM(names, i), 1)) == 0)
                done = pack_value(packed, PyList_GET_ITEM(more, i), 1);
        }
    return done;
}

/* The items of `Message`. The same. */
static int pack_said(Packed *packed, const Said *said)
{
    enum { NOBODY = 0x90 };
    int i, done = 0;
    for (i = FINISHED; done == 0 && i <= ENCODED; i++)
        if (i == MORE)
            done = pack_grown(packed, said);
        else if (said->says & BIT(i))
            done = pack_value(packed, said->of[i], 1);
        else
            done = pack_byte(packed, BIT(i) & (BIT(GOES_ON) | BIT(SCHEDULED) | BIT(TOKENS)) ? NONE : NOBODY);
    return done;
}

#define COMPUTED_AT_ONCE 256
#define COMPUTED_ROOM (9 * COMPUTED_AT_ONCE + 64) /* of so many numbers, whatever they are, and what comes behind them */

static Spelled spelled_reader;

/* The message for whoever follows under that name, in its turn among the lines, put at once where it says no more than that
   the same requests go on. 1: it is; 0: it is not, and nothing has happened. Runs nothing. */
static inline int tell_at_once(State *state, PyObject *name, const Said *said)
{
    static const char begins[] = "\x99\x90\x90\xc0"; /* who has finished, who is new, who goes on */
    static const char ends[] = "\xc0\xc0\x90";       /* scheduled, tokens, encoded */
    PyObject *more = said->of[MORE], *computed = said->of[COMPUTED];
    Packed *packed = state->packed;
    Py_ssize_t i, count;
    const Text *reader;
    unsigned char *at;
    size_t before;
    int over = 0, any;
    if (RARE(said->says != BIT(COMPUTED)) || RARE((at = ops_at_once(state, state_of_thread(), 1, 3)) == NULL) ||
        RARE((reader = spelled(&spelled_reader, name)) == NULL) ||
        RARE((count = PyList_GET_SIZE(computed)) > COMPUTED_AT_ONCE) ||
        RARE(packed->used + COMPUTED_ROOM + 128 > packed->room))
        return 0;
    at[0] = 0x93;
    at[1] = TOLD;
    at = put_text(at + 2, reader);
    memcpy(at, begins, sizeof(begins) - 1);
    at += sizeof(begins) - 1;
    for (i = PyList_GET_SIZE(more) - 1; i >= 0 && PyList_GET_ITEM(more, i) == Py_None; i--)
        ;
    before = packed->used;
    if (i < 0)
        *at++ = 0x90; /* nobody got blocks */
    else {
        packed->used = (size_t)(at - packed->bytes);
        any = pack_grown(packed, said);
        at = packed->bytes + packed->used;
        over = RARE(any != 0) || RARE(packed->used + COMPUTED_ROOM > packed->room);
        packed->used = before;
        if (RARE(over)) {
            PyErr_Clear(); /* no memory: it is asked for again */
            return 0;
        }
    }
    *at++ = 0x90; /* resumed */
    *at++ = 0xdc;
    put_big(at, (unsigned long long)count, 2);
    at += 2;
    for (i = 0; i < count; i++) {
        PyObject *number = PyList_GET_ITEM(computed, i);
        long long value;
        if (RARE(!PyLong_CheckExact(number)) || (value = whole(number, &over), RARE(over)))
            return 0;
        at = put_wide(at, value);
    }
    memcpy(at, ends, sizeof(ends) - 1);
    packed->used = (size_t)(at + sizeof(ends) - 1 - packed->bytes);
    packed->count++;
    return 1;
}

/* The same, put in place. 1: it is; 0: it cannot be; -1 with an error. */
static COLD int tell_in_place(State *state, PyObject *name, const Said *said)
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

/* The same as a line that is made. 1, or -1 with an error. */
static COLD int tell_slowly(State *state, PyObject *name, const Said *said)
{
    PyObject *got = grown(said->of[GOES_ON], said->of[MORE]), *nobody = PyList_New(0), *message = NULL;
    int news = said->says & BIT(FRESH), other = said->says & BIT(GOES_ON);
    if (got != NULL && nobody != NULL)
        message = Py_BuildValue("(OOOOONOOO)", news ? said->of[FINISHED] : nobody, news ? said->of[FRESH] : nobody,
                                other ? said->of[GOES_ON] : Py_None, got, nobody,
                                PyList_GetSlice(said->of[COMPUTED], 0, PyList_GET_SIZE(said->of[COMPUTED])),
                                other ? said->of[SCHEDULED] : Py_None, other ? said->of[TOKENS] : Py_None, nobody);
    Py_XDECREF(got);
    Py_XDECREF(nobody);
    return state_tell(state, name, message) < 0 ? -1 : 1;
}

#endif
