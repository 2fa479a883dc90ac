/* The methods of a list that hands over (`handoff.py`: `HandingList`) that an engine calls in each step: an entry comes
   in with a token, and whoever first sees it takes the token. The rest, and slices, are Python's. */

#ifndef KVSAN_HAND_H
#define KVSAN_HAND_H

#include "common.h"
#include "lines.h"

/* The parts of a `HandingList` that are needed; each a new reference. */
typedef struct {
    State *state;
    Lock *places;
    PyObject *tokens;
} Hands;

static Place place_recorder, place_places, place_tokens, place_given, place_seen;

static inline void hands_drop(Hands *hands)
{
    if (USUAL(hands->state != NULL))
        let_one_go((PyObject *)hands->state);
    if (USUAL(hands->places != NULL))
        let_one_go((PyObject *)hands->places);
    if (USUAL(hands->tokens != NULL))
        let_one_go(hands->tokens);
    hands->state = NULL;
    hands->places = NULL;
    hands->tokens = NULL;
}

/* Subclasses of `State` and `Counter` that were met last, which are asked for each time (references). */
static PyTypeObject *state_kind, *counter_kind;

static COLD int kind_learn(PyTypeObject **kind, PyTypeObject *base, PyObject *object)
{
    if (!PyObject_TypeCheck(object, base))
        return 0;
    Py_XSETREF(*kind, (PyTypeObject *)Py_NewRef(Py_TYPE(object)));
    return 1;
}

static inline int is_kind(PyTypeObject **kind, PyTypeObject *base, PyObject *object)
{
    return USUAL(Py_TYPE(object) == *kind) || kind_learn(kind, base, object);
}

/* 1 if it is as usual; 0 if not; -1 with an error. */
static HOT int hands_enter(PyObject *list, Hands *hands)
{
    hands->state = (State *)place_read(&place_recorder, s__recorder, list);
    hands->places = hands->state == NULL ? NULL : (Lock *)place_read(&place_places, s__places, list);
    hands->tokens = NULL;
    if (USUAL(hands->places != NULL) && USUAL(is_kind(&state_kind, &StateType, (PyObject *)hands->state)) &&
        USUAL(Py_TYPE(hands->places) == lock_type))
        return 1;
    hands_drop(hands);
    if (PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return PyErr_Occurred() ? -1 : 0;
}

static inline void count_up(PyObject *list, Place *place, PyObject *name)
{
    PyObject *counter = place_read(place, name, list);
    if (RARE(counter == NULL)) {
        PyErr_Clear();
        return;
    }
    if (USUAL(is_kind(&counter_kind, &CounterType, counter)))
        ((Counter *)counter)->count++;
    let_one_go(counter);
}

/* Under `places`, since what has them may put others in their place (`sort`): the tokens as they are now. */
static HOT int hands_tokens(PyObject *list, Hands *hands)
{
    PyObject *tokens = place_read(&place_tokens, s__tokens, list), *before = hands->tokens;
    hands->tokens = tokens;
    if (RARE(before != NULL))
        Py_DECREF(before);
    if (RARE(tokens == NULL))
        return -1;
    if (USUAL(PyList_CheckExact(tokens)))
        return 0;
    PyErr_SetString(PyExc_TypeError, "tokens that are no list");
    return -1;
}

static COLD int hands_align(PyObject *list, Hands *hands)
{
    PyObject *done;
    if ((done = PyObject_CallMethodNoArgs(list, s__align)) == NULL)
        return -1;
    Py_DECREF(done);
    if (hands_tokens(list, hands) < 0)
        return -1;
    if (PyList_GET_SIZE(hands->tokens) == PyList_GET_SIZE(list))
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "tokens that are not the list's");
    return -1;
}

/* The same, and they belong to the entries. */
static inline int hands_aligned(PyObject *list, Hands *hands)
{
    if (RARE(hands_tokens(list, hands) < 0))
        return -1;
    return USUAL(PyList_GET_SIZE(hands->tokens) == PyList_GET_SIZE(list)) ? 0 : hands_align(list, hands);
}

/* The token is taken, if there is one; the entry goes back. References of both are taken over. */
static HOT PyObject *hands_take(PyObject *list, Hands *hands, PyObject *found, PyObject *token)
{
    PyObject *done;
    if (USUAL(found != NULL) && token != Py_None) {
        count_up(list, &place_seen, s__seen_hook);
        if (RARE((done = State_taken(hands->state, token)) == NULL)) {
            if (state_failed(hands->state, s_list) < 0)
                Py_CLEAR(found);
        } else
            let_one_go(done);
    }
    Py_DECREF(token);
    return found;
}

static PyObject *hand_append(PyObject *list, PyObject *item)
{
    Hands hands;
    PyObject *token;
    int done = hands_enter(list, &hands);
    if (done <= 0)
        return done < 0 ? NULL : PyObject_CallMethodOneArg(list, s__append, item);
    if (hands.state->on) { /* before the entry can be seen */
        count_up(list, &place_given, s__given_hook);
        token = State_hand_on(hands.state, s_list);
        if (token == NULL && state_failed(hands.state, s_list) == 0)
            token = Py_NewRef(Py_None);
    } else
        token = Py_NewRef(Py_None);
    if (token == NULL || lock_take(hands.places) < 0)
        done = -1;
    else {
        if (hands_aligned(list, &hands) < 0 || PyList_Append(list, item) < 0 || PyList_Append(hands.tokens, token) < 0)
            done = -1;
        lock_leave(hands.places);
    }
    Py_XDECREF(token);
    hands_drop(&hands);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* 1: it is as usual, `places` is taken, and `at`, from the end if negative, is the index of an entry; 0: none of that;
   -1 with an error. */
static HOT int hands_at(PyObject *list, Hands *hands, Py_ssize_t *at)
{
    int done = hands_enter(list, hands);
    if (RARE(done <= 0))
        return done;
    if (RARE(lock_take(hands->places) < 0)) {
        hands_drop(hands);
        return -1;
    }
    if (USUAL((done = hands_aligned(list, hands)) == 0) && *at < 0)
        *at += PyList_GET_SIZE(list);
    if (USUAL(done == 0) && USUAL(*at >= 0) && USUAL(*at < PyList_GET_SIZE(list)))
        return 1;
    lock_leave(hands->places);
    hands_drop(hands);
    return done < 0 ? -1 : 0;
}

/* `at` as an index: 1; 0 if it is none of a list's, which has an error of its own for it. */
static inline int hands_index(PyObject *index, Py_ssize_t *at)
{
    int over = 1;
    if (USUAL(PyLong_CheckExact(index)))
        *at = (Py_ssize_t)whole(index, &over);
    return USUAL(!over);
}

static PyObject *hand_look(PyObject *list, PyObject *index)
{
    Hands hands;
    PyObject *found, *token;
    Py_ssize_t at;
    int done = USUAL(hands_index(index, &at)) ? hands_at(list, &hands, &at) : 0;
    if (RARE(done <= 0))
        return done < 0 ? NULL : PyObject_CallMethodOneArg(list, s__look, index);
    found = Py_NewRef(PyList_GET_ITEM(list, at));
    token = Py_NewRef(PyList_GET_ITEM(hands.tokens, at));
    if (token != Py_None)
        PyList_SetItem(hands.tokens, at, Py_NewRef(Py_None));
    lock_leave(hands.places);
    found = hands_take(list, &hands, found, token);
    hands_drop(&hands);
    return found;
}

static PyObject *hand_pop(PyObject *list, PyObject *const *args, Py_ssize_t given)
{
    Hands hands;
    PyObject *found, *token;
    Py_ssize_t at = -1;
    int done = USUAL(given == 0 || (given == 1 && hands_index(args[0], &at))) ? hands_at(list, &hands, &at) : 0;
    if (RARE(done < 0))
        return NULL;
    if (RARE(done == 0))
        goto slowly;
    found = Py_NewRef(PyList_GET_ITEM(list, at));
    token = Py_NewRef(PyList_GET_ITEM(hands.tokens, at));
    if (PyList_SetSlice(list, at, at + 1, NULL) < 0 || PyList_SetSlice(hands.tokens, at, at + 1, NULL) < 0)
        Py_CLEAR(found);
    lock_leave(hands.places);
    found = hands_take(list, &hands, found, token);
    hands_drop(&hands);
    return found;
slowly:
    {
        PyObject *slow = PyObject_GetAttr(list, s__pop), *result;
        if (slow == NULL)
            return NULL;
        result = PyObject_Vectorcall(slow, args, (size_t)given, NULL);
        Py_DECREF(slow);
        return result;
    }
}

static PyMethodDef hand_methods[] = {
    {"append", (PyCFunction)hand_append, METH_O, NULL},
    {"__getitem__", (PyCFunction)hand_look, METH_O, NULL},
    {"pop", (PyCFunction)(void (*)(void))hand_pop, METH_FASTCALL, NULL},
};

/* `hand_append`, `hand_look` and `hand_pop`: methods for a subclass of `list`. */
static int add_hands(PyObject *module)
{
    static const char *names[] = {"hand_append", "hand_look", "hand_pop"};
    size_t i;
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        PyObject *method = PyDescr_NewMethod(&PyList_Type, &hand_methods[i]);
        int done = method == NULL ? -1 : PyModule_AddObjectRef(module, names[i], method);
        Py_XDECREF(method);
        if (done < 0)
            return -1;
    }
    return 0;
}

#endif
