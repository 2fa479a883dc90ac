/* Which event is which, the usual way (`names.py`): its name hangs on the event, and what has ended is noted when the event
   ends, at any moment in any thread. Events that cannot carry a name are left to the Python half. */

#ifndef KVSAN_EVENTS_H
#define KVSAN_EVENTS_H

#include "common.h"
#include "recorder.h"

/* One that has ended: its name in place, or as a string where that is too long. */
typedef struct {
    Text text;
    PyObject *name;
} Ended;

/* Names of events. A subclass sets the fields, and knows events that cannot carry a name. */
typedef struct {
    PyObject_HEAD
    PyObject *prefix, *attribute;
    PyObject *names, *held; /* dicts of events that have their names elsewhere */
    Place worn;             /* where stand-ins for PyTorch's class keep theirs (`surface.stand_in`) */
    Py_ssize_t serial;
    Ended *ended; /* names of events that are gone, in order */
    Py_ssize_t count, room;
    Text latest;            /* the latest name that was made in place, */
    PyObject *latest_prefix; /* of this prefix (a reference) and */
    Py_ssize_t latest_serial; /* this number */
} Names;

/* Any thread, any moment; without memory the name is not said to have ended. Takes the string's reference over. */
static void names_end(Names *self, const Text *text, PyObject *name)
{
    if (self->count == self->room) {
        Py_ssize_t room = self->room ? 2 * self->room : 64;
        Ended *ended = PyMem_RawRealloc(self->ended, (size_t)room * sizeof(Ended));
        if (ended == NULL) {
            Py_XDECREF(name);
            return;
        }
        self->ended = ended;
        self->room = room;
    }
    self->ended[self->count].name = text->size ? NULL : name;
    if (text->size)
        Py_XDECREF(name);
    self->ended[self->count++].text = *text;
}

/* The name of an event, on that event. Where it ends, `names` hears of it. */
typedef struct {
    PyObject_HEAD
    Names *names;
    PyObject *event; /* whose it is: an address and no reference */
    Text text;
    PyObject *name; /* if it was asked for, or is too long */
} Tag;

static void Tag_dealloc(Tag *self)
{
    if (self->names != NULL) {
        if (self->text.size || self->name != NULL) {
            names_end(self->names, &self->text, self->name);
            self->name = NULL;
        }
        Py_DECREF(self->names);
    }
    Py_XDECREF(self->name);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* A new reference. */
static PyObject *tag_name(Tag *self)
{
    if (self->name == NULL && (self->name = text_string(&self->text)) == NULL)
        return NULL;
    return Py_NewRef(self->name);
}

/* An event that is pickled leaves it behind. */
static PyObject *Tag_reduce(Tag *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("O()", Py_TYPE(Py_None));
}

static PyMethodDef Tag_methods[] = {
    {"__reduce__", (PyCFunction)Tag_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject TagType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Tag",
    .tp_doc = "The name of an event, on that event.",
    .tp_basicsize = sizeof(Tag),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)Tag_dealloc,
    .tp_methods = Tag_methods,
};

/* `fresh`: a new name. */
static PyObject *names_fresh(Names *self)
{
    if (self->prefix == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_prefix");
        return NULL;
    }
    return PyUnicode_FromFormat("%Se%zd", self->prefix, ++self->serial);
}

/* The same in place. 1: it is; 0: it is too long; -1 with an error. */
static COLD int names_fresh_spelled(Names *self, Text *text)
{
    char bytes[64];
    Py_ssize_t size;
    const char *prefix;
    if (self->prefix == NULL || !PyUnicode_Check(self->prefix))
        return 0;
    if ((prefix = PyUnicode_AsUTF8AndSize(self->prefix, &size)) == NULL) {
        PyErr_Clear();
        return 0;
    }
    if (size > 16 || self->serial < 0)
        return 0;
    memcpy(bytes, prefix, (size_t)size);
    bytes[size++] = 'e';
    text_set(text, bytes, (size_t)(put_digits(bytes + size, ++self->serial) - bytes));
    self->latest = *text;
    self->latest_serial = self->serial;
    Py_XSETREF(self->latest_prefix, Py_NewRef(self->prefix));
    return 1;
}

/* Nine of ten differ from the one before in their last digit alone. The name; NULL if it is not one of those. */
static inline const Text *names_fresh_at_once(Names *self)
{
    Text *latest = &self->latest;
    unsigned size = latest->size;
    if (RARE(self->latest_prefix != self->prefix) || RARE(self->latest_serial != self->serial) || RARE(!size) ||
        RARE(latest->bytes[size - 1] == '9'))
        return NULL;
    latest->bytes[size - 1]++;
    self->latest_serial = ++self->serial;
    return latest;
}

static inline int names_fresh_text(Names *self, Text *text)
{
    const Text *name = names_fresh_at_once(self);
    if (RARE(name == NULL))
        return names_fresh_spelled(self, text);
    text_copy(text, name);
    return 1;
}

/* 1: the tag hangs there; 0: the event does not carry it; -1: an error. */
static int names_hang(Names *self, PyObject *event, PyObject *tag)
{
    PyObject *found;
    if (Py_TYPE(event) == self->worn.type) {
        Py_XSETREF(*place_in(&self->worn, event), Py_NewRef(tag));
        return 1;
    }
    if (PyObject_SetAttr(event, self->attribute, tag) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError) && !PyErr_ExceptionMatches(PyExc_TypeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    found = look_up(event, self->attribute);
    if (found == NULL && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError))
            return -1;
        PyErr_Clear();
    }
    Py_XDECREF(found);
    if (found != tag)
        return 0;
    place_learn(&self->worn, self->attribute, Py_TYPE(event));
    return 1;
}

/* The tag that the event carries, a new reference; NULL if it has none of its own or, with an error, if that went
   wrong. */
static inline Tag *names_worn(Names *self, PyObject *event)
{
    Tag *tag;
    if (Py_TYPE(event) == self->worn.type)
        tag = (Tag *)Py_XNewRef(*place_in(&self->worn, event));
    else
        tag = self->attribute == NULL ? NULL : (Tag *)look_up(event, self->attribute);
    if (tag == NULL || (Py_TYPE(tag) == &TagType && tag->event == event))
        return tag;
    Py_DECREF(tag);
    return NULL;
}

static inline int is_empty_dict(PyObject *names)
{
    return PyDict_Check(names) && PyDict_GET_SIZE(names) == 0;
}

/* The same, made for an event that has none. NULL without an error if it cannot carry one: then `name` is its name, a
   new reference. */
static COLD Tag *names_tag(Names *self, PyObject *event, PyObject **name)
{
    PyObject *done;
    Tag *tag;
    int hangs;
    *name = NULL;
    if (PyErr_Occurred())
        return NULL;
    if (self->attribute == NULL || self->names == NULL || self->held == NULL) {
        PyErr_SetString(PyExc_AttributeError, "names of events that were not set up");
        return NULL;
    }
    if (!is_empty_dict(self->names) || !is_empty_dict(self->held)) {
        *name = PyObject_CallMethodOneArg((PyObject *)self, s__otherwise, event);
        if (*name == NULL || *name != Py_None)
            return NULL;
        Py_CLEAR(*name);
    }
    if ((tag = (Tag *)TagType.tp_alloc(&TagType, 0)) == NULL)
        return NULL;
    hangs = names_fresh_text(self, &tag->text);
    if (hangs < 0 || (hangs == 0 && (tag->name = names_fresh(self)) == NULL)) {
        Py_DECREF(tag);
        return NULL;
    }
    tag->names = (Names *)Py_NewRef(self);
    tag->event = event;
    hangs = names_hang(self, event, (PyObject *)tag);
    if (hangs == 1)
        return tag;
    Py_CLEAR(tag->names); /* it hangs nowhere, and its end is nobody's */
    if (hangs == 0 && (*name = tag_name(tag)) != NULL) {
        done = PyObject_CallMethodObjArgs((PyObject *)self, s__refer, event, *name, NULL);
        if (done == NULL)
            Py_CLEAR(*name);
        Py_XDECREF(done);
    }
    Py_DECREF(tag);
    return NULL;
}

/* `name`: the event's, a new reference. */
static PyObject *names_name(Names *self, PyObject *event)
{
    PyObject *name;
    Tag *tag = names_worn(self, event);
    if (tag != NULL || (tag = names_tag(self, event, &name)) != NULL) {
        name = tag_name(tag);
        Py_DECREF(tag);
    }
    return name;
}

/* The name of an event whose class carries it in a place of its own, made if it has none; it stays with the event. NULL for
   any other. Runs nothing. */
static inline const Text *names_at_once(Names *self, PyObject *event)
{
    PyObject **worn;
    Tag *tag;
    if (RARE(Py_TYPE(event) != self->worn.type))
        return NULL;
    worn = place_in(&self->worn, event);
    tag = (Tag *)*worn;
    if (tag == NULL) { /* one in two */
        const Text *name;
        if (RARE(self->names == NULL) || RARE(self->held == NULL) || RARE(!is_empty_dict(self->names)) ||
            RARE(!is_empty_dict(self->held)) || RARE((tag = PyObject_New(Tag, &TagType)) == NULL))
            return NULL; /* maybe without memory, and with an error */
        tag->names = NULL;
        tag->name = NULL;
        tag->event = event;
        tag->text.size = 0;
        if (RARE((name = names_fresh_at_once(self)) == NULL)) {
            Py_DECREF(tag);
            return NULL;
        }
        text_copy(&tag->text, name);
        tag->names = (Names *)Py_NewRef(self);
        *worn = (PyObject *)tag;
    } else if (RARE(Py_TYPE(tag) != &TagType) || RARE(tag->event != event) || RARE(!tag->text.size))
        return NULL;
    return &tag->text;
}

static COLD int names_text_made(Names *self, PyObject *event, Text *text)
{
    PyObject *name;
    Tag *tag = names_tag(self, event, &name);
    if (tag != NULL) {
        text_copy(text, &tag->text);
        Py_DECREF(tag);
        return 0;
    }
    return text_taken(text, name);
}

/* The same in place. 0, or -1 with an error. */
static HOT int names_text(Names *self, PyObject *event, Text *text)
{
    Tag *tag = names_worn(self, event);
    if (tag == NULL)
        return names_text_made(self, event, text);
    text_copy(text, &tag->text);
    Py_DECREF(tag);
    return 0;
}

static Py_ssize_t names_ended(PyObject *names)
{
    return ((Names *)names)->count;
}

/* `take_dead`: names of events that are gone since the last call, a new list. */
static PyObject *Names_take_dead(Names *self, PyObject *unused)
{
    Py_ssize_t count = self->count, i;
    PyObject *names = PyList_New(0);
    (void)unused;
    for (i = 0; names != NULL && i < count; i++) {
        Ended *ended = &self->ended[i];
        PyObject *name = ended->text.size ? text_string(&ended->text) : Py_XNewRef(ended->name);
        if (name == NULL || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    if (names == NULL)
        return NULL;
    for (i = 0; i < count; i++)
        Py_XDECREF(self->ended[i].name); /* of a string: nothing of ours runs */
    if (count > 0)
        memmove(self->ended, self->ended + count, (size_t)(self->count - count) * sizeof(Ended));
    self->count -= count;
    return names;
}

/* `append`: one more that is gone. */
static PyObject *Names_append(Names *self, PyObject *name)
{
    Text text;
    text_of(&text, name);
    names_end(self, &text, Py_NewRef(name));
    Py_RETURN_NONE;
}

/* Lines of the events that are gone, put in place. */
static int names_drop(State *state, PyObject *names)
{
    Names *self = (Names *)names;
    unsigned long long now;
    unsigned char *put;
    PyObject *gone, *by, *at;
    Py_ssize_t i;
    Text who;
    int done = 0;
    if (state_thread_text(state, &who) < 0)
        return -1;
    now = in_place(state) ? clock_now() : 0; /* from here on nothing of Python's is called until they are all in */
    for (i = 0; now && who.size && i < self->count && self->ended[i].text.size; i++) {
        if ((put = line_begins(state, 4, DROP)) == NULL)
            break;
        line_ends(state, put_long(put_text(put_text(put, &who), &self->ended[i].text), now));
        state->count++;
    }
    if (i > 0) {
        memmove(self->ended, self->ended + i, (size_t)(self->count - i) * sizeof(Ended));
        self->count -= i;
    }
    if (PyErr_Occurred())
        return -1;
    if (self->count == 0)
        return 0;
    if ((gone = Names_take_dead(self, NULL)) == NULL)
        return -1;
    by = state_thread(state);
    at = by == NULL ? NULL : state_now(state);
    if (at == NULL)
        done = -1;
    for (i = 0; done == 0 && i < PyList_GET_SIZE(gone); i++) {
        PyObject *line = Py_BuildValue("(iOOO)", DROP, by, PyList_GET_ITEM(gone, i), at);
        state->count++; /* what comes while it is packed has the next number */
        done = line == NULL ? -1 : state_queue(state, line);
        Py_XDECREF(line);
        state->count -= done < 0;
    }
    Py_XDECREF(by);
    Py_XDECREF(at);
    Py_DECREF(gone);
    return done;
}

static PyObject *Names_name(Names *self, PyObject *event)
{
    return names_name(self, event);
}

static PyObject *Names_fresh(Names *self, PyObject *unused)
{
    (void)unused;
    return names_fresh(self);
}

static int Names_traverse(Names *self, visitproc visit, void *arg)
{
    Py_VISIT(self->prefix);
    Py_VISIT(self->attribute);
    Py_VISIT(self->names);
    Py_VISIT(self->held);
    Py_VISIT(self->worn.type);
    Py_VISIT(self->latest_prefix);
    return 0;
}

/* No `tp_clear`, here and below: what runs while others are cleared may ask for a name. Each cycle goes through a dict,
   which is cleared. */
static void Names_dealloc(Names *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->prefix);
    Py_CLEAR(self->attribute);
    Py_CLEAR(self->names);
    Py_CLEAR(self->held);
    Py_CLEAR(self->worn.type);
    Py_CLEAR(self->latest_prefix);
    while (self->count > 0)
        Py_XDECREF(self->ended[--self->count].name);
    PyMem_RawFree(self->ended);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Names_methods[] = {
    {"name", (PyCFunction)Names_name, METH_O, "The name of an event, made when it is asked for first."},
    {"take_dead", (PyCFunction)Names_take_dead, METH_NOARGS, "Names of events that are gone since the last call."},
    {"append", (PyCFunction)Names_append, METH_O, "One more that is gone."},
    {"fresh", (PyCFunction)Names_fresh, METH_NOARGS, "A name for an event that is no Python object here."},
    {NULL, NULL, 0, NULL},
};

static Py_ssize_t Names_length(Names *self)
{
    return self->count;
}

static PySequenceMethods Names_sequence = {.sq_length = (lenfunc)Names_length};

static PyMemberDef Names_members[] = {
    {"_prefix", T_OBJECT_EX, offsetof(Names, prefix), 0, NULL},
    {"attribute", T_OBJECT_EX, offsetof(Names, attribute), 0, NULL},
    {"_names", T_OBJECT_EX, offsetof(Names, names), 0, NULL},
    {"_held", T_OBJECT_EX, offsetof(Names, held), 0, NULL},
    {"_serial", T_PYSSIZET, offsetof(Names, serial), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject NamesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Names",
    .tp_doc = "Names of events. As long as there are any that are gone.",
    .tp_as_sequence = &Names_sequence,
    .tp_basicsize = sizeof(Names),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)Names_dealloc,
    .tp_traverse = (traverseproc)Names_traverse,
    .tp_methods = Names_methods,
    .tp_members = Names_members,
};

#endif
