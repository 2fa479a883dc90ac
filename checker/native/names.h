/* Who is who, the usual way (`names.py`): an event's name hangs on the event, a stream's on the stream, and that of the
   current stream is known by device and handle. What is not usual is left to the Python half. */

#ifndef KVSAN_NAMES_H
#define KVSAN_NAMES_H

#include "common.h"
#include "state.h"

/* ── events ───────────────────────────────────────────────────────────────────────────────────────────────────── */

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
    Py_ssize_t serial;
    Ended *ended; /* names of events that are gone, in order */
    Py_ssize_t count, room;
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
static int names_fresh_text(Names *self, Text *text)
{
    char bytes[64];
    Py_ssize_t size;
    const char *prefix;
    if (self->prefix == NULL || !PyUnicode_Check(self->prefix))
        return 0;
    if ((prefix = PyUnicode_AsUTF8AndSize(self->prefix, &size)) == NULL)
        return -1;
    if (size > 16)
        return 0;
    memcpy(bytes, prefix, (size_t)size);
    size += PyOS_snprintf(bytes + size, sizeof(bytes) - (size_t)size, "e%zd", ++self->serial);
    text_set(text, bytes, (size_t)size);
    return 1;
}

/* 1: the tag hangs there; 0: the event does not carry it; -1: an error. */
static int names_hang(Names *self, PyObject *event, PyObject *tag)
{
    PyObject *found;
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
    return found == tag;
}

/* The event's tag, made if it has none, a new reference. NULL without an error if the event cannot carry one: then
   `name` is its name, a new reference. */
static Tag *names_tag(Names *self, PyObject *event, PyObject **name)
{
    PyObject *done;
    Tag *tag;
    Py_ssize_t others;
    int hangs;
    *name = NULL;
    if (self->attribute == NULL || self->names == NULL || self->held == NULL) {
        PyErr_SetString(PyExc_AttributeError, "names of events that were not set up");
        return NULL;
    }
    tag = (Tag *)look_up(event, self->attribute);
    if (tag != NULL) {
        if (Py_TYPE(tag) == &TagType && tag->event == event)
            return tag;
        Py_DECREF(tag);
    } else if (PyErr_Occurred())
        return NULL;
    if ((others = PyObject_Size(self->names)) == 0)
        others = PyObject_Size(self->held);
    if (others < 0)
        return NULL;
    if (others > 0) {
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
    Tag *tag = names_tag(self, event, &name);
    if (tag != NULL) {
        name = tag_name(tag);
        Py_DECREF(tag);
    }
    return name;
}

/* The same in place. 0, or -1 with an error. */
static int names_text(Names *self, PyObject *event, Text *text)
{
    PyObject *name;
    Tag *tag = names_tag(self, event, &name);
    if (tag != NULL) {
        *text = tag->text;
        Py_DECREF(tag);
        return 0;
    }
    if (name == NULL)
        return -1;
    text_of(text, name);
    Py_DECREF(name);
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
    PyObject *gone, *by, *at;
    Py_ssize_t i;
    Text who;
    int done = 0;
    if (state_thread_text(state, &who) < 0 || (in_place(state) && state_settle(state) < 0))
        return -1;
    now = in_place(state) ? clock_now() : 0; /* from here on nothing of Python's is called until they are all in */
    for (i = 0; now && who.size && i < self->count && self->ended[i].text.size; i++) {
        if (line_begins(state, 4) < 0)
            break;
        pack_code(state, DROP);
        pack_text(state->packed, &who);
        pack_text(state->packed, &self->ended[i].text);
        line_ends(state, now);
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
    {"_attribute", T_OBJECT_EX, offsetof(Names, attribute), 0, NULL},
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

/* ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────── */

#define MET 4

/* Names of streams for one `Calls`. `device` and `handle` are PyTorch's own, `meet` is asked for a (device, handle) that
   was not met before and says `None` if that does not settle it, `other` is asked for all else. */
typedef struct {
    PyObject_HEAD
    State *state;
    PyObject *device, *handle, *meet, *other;
    struct {
        long device;
        long long handle;
        PyObject *name;
        Text text;
    } met[MET];
    struct {
        PyObject *stream;
        Text text;
    } given[MET]; /* streams that carry their name */
    int next, next_given;
    Py_ssize_t gone; /* `streams_gone` when they were met */
} Namer;

static PyObject *namer_other(Namer *self, PyObject *stream)
{
    return PyObject_CallOneArg(self->other, stream);
}

/* What was met is not known any more: a stream was destroyed. */
static void namer_forget(Namer *self)
{
    int i;
    self->gone = self->state->gone;
    for (i = 0; i < MET; i++) {
        Py_CLEAR(self->met[i].name);
        Py_CLEAR(self->given[i].stream);
    }
}

/* The current stream's place in `met`. -1 if it has none: `name` is its name then, a new reference, or NULL with an
   error, or NULL without one if it is not to be had here. */
static int namer_met(Namer *self, PyObject **name)
{
    PyObject *device, *handle, *key;
    Py_ssize_t gone;
    long at;
    long long which;
    int i;
    *name = NULL;
    if (self->device == Py_None || (device = PyObject_CallNoArgs(self->device)) == NULL)
        return -1;
    if ((handle = PyObject_CallOneArg(self->handle, device)) == NULL) {
        Py_DECREF(device);
        return -1;
    }
    at = PyLong_AsLong(device);
    which = (long long)PyLong_AsUnsignedLongLongMask(handle);
    i = -1;
    if (PyErr_Occurred())
        goto done;
    if (self->gone != self->state->gone)
        namer_forget(self);
    for (i = MET - 1; i >= 0; i--)
        if (self->met[i].name != NULL && self->met[i].handle == which && self->met[i].device == at)
            goto done;
    gone = self->state->gone;
    if ((key = PyTuple_Pack(2, device, handle)) != NULL) {
        *name = PyObject_CallOneArg(self->meet, key);
        Py_DECREF(key);
    }
    if (*name == Py_None)
        Py_CLEAR(*name);
    if (*name != NULL && gone == self->state->gone && gone == self->gone) { /* nothing was destroyed meanwhile */
        self->met[self->next].device = at;
        self->met[self->next].handle = which;
        text_of(&self->met[self->next].text, *name);
        Py_XSETREF(self->met[self->next].name, Py_NewRef(*name));
        self->next = (self->next + 1) % MET;
    }
done:
    Py_DECREF(device);
    Py_DECREF(handle);
    return i;
}

/* The name of the current stream, a new reference; NULL without an error if that is not to be had here. */
static PyObject *namer_current(Namer *self)
{
    PyObject *name;
    int at = namer_met(self, &name);
    return at < 0 ? name : Py_NewRef(self->met[at].name);
}

/* The name that the stream carries, a new reference; NULL without an error if it carries none. */
static PyObject *namer_kept(Namer *self, PyObject *stream)
{
    PyObject *kept = look_up(stream, s__kvsan_name), *name = NULL;
    if (kept != NULL && PyTuple_CheckExact(kept) && PyTuple_GET_SIZE(kept) == 3 &&
        PyTuple_GET_ITEM(kept, 0) == (PyObject *)self->state && PyLong_CheckExact(PyTuple_GET_ITEM(kept, 1)) &&
        PyLong_AsSsize_t(PyTuple_GET_ITEM(kept, 1)) == self->state->gone)
        name = Py_NewRef(PyTuple_GET_ITEM(kept, 2));
    Py_XDECREF(kept);
    return name;
}

/* The name of a stream, of the current one for NULL or `None`; a new reference. */
static PyObject *namer_name(Namer *self, PyObject *stream)
{
    int current = stream == NULL || stream == Py_None;
    PyObject *name = current ? namer_current(self) : namer_kept(self, stream);
    if (name != NULL || PyErr_Occurred())
        return name;
    return namer_other(self, current ? Py_None : stream);
}

/* The same in place. 0, or -1 with an error. */
static int namer_text(Namer *self, PyObject *stream, Text *text)
{
    PyObject *name;
    int i;
    if (stream == NULL || stream == Py_None) {
        if ((i = namer_met(self, &name)) >= 0) {
            *text = self->met[i].text;
            return 0;
        }
        if (name == NULL && !PyErr_Occurred())
            name = namer_other(self, Py_None);
    } else {
        if (self->gone != self->state->gone)
            namer_forget(self);
        for (i = 0; i < MET; i++)
            if (self->given[i].stream == stream) {
                *text = self->given[i].text;
                return 0;
            }
        if ((name = namer_kept(self, stream)) != NULL && self->gone == self->state->gone) {
            i = self->next_given;
            self->next_given = (i + 1) % MET;
            text_of(&self->given[i].text, name);
            Py_XSETREF(self->given[i].stream, Py_NewRef(stream));
        } else if (name == NULL && !PyErr_Occurred())
            name = namer_other(self, stream);
    }
    if (name == NULL)
        return -1;
    text_of(text, name);
    Py_DECREF(name);
    return 0;
}

static PyObject *Namer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *state, *device, *handle, *meet, *other;
    Namer *self;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!OOOO:Namer", &StateType, &state, &device, &handle, &meet, &other))
        return NULL;
    if ((self = (Namer *)type->tp_alloc(type, 0)) != NULL) {
        self->state = (State *)Py_NewRef(state);
        self->device = Py_NewRef(device);
        self->handle = Py_NewRef(handle);
        self->meet = Py_NewRef(meet);
        self->other = Py_NewRef(other);
        self->gone = self->state->gone;
    }
    return (PyObject *)self;
}

static PyObject *Namer_name(Namer *self, PyObject *stream)
{
    return namer_name(self, stream);
}

static int Namer_traverse(Namer *self, visitproc visit, void *arg)
{
    int i;
    Py_VISIT(self->state);
    Py_VISIT(self->device);
    Py_VISIT(self->handle);
    Py_VISIT(self->meet);
    Py_VISIT(self->other);
    for (i = 0; i < MET; i++)
        Py_VISIT(self->given[i].stream);
    return 0;
}

static void Namer_dealloc(Namer *self)
{
    int i;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->state);
    Py_CLEAR(self->device);
    Py_CLEAR(self->handle);
    Py_CLEAR(self->meet);
    Py_CLEAR(self->other);
    for (i = 0; i < MET; i++) {
        Py_CLEAR(self->met[i].name);
        Py_CLEAR(self->given[i].stream);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Namer_methods[] = {
    {"name", (PyCFunction)Namer_name, METH_O, "The name of a stream, of the current one for `None`."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject NamerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Namer",
    .tp_doc = "Names of streams.",
    .tp_basicsize = sizeof(Namer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Namer_new,
    .tp_dealloc = (destructor)Namer_dealloc,
    .tp_traverse = (traverseproc)Namer_traverse,
    .tp_methods = Namer_methods,
};

#endif
