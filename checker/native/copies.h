/* The copies of vLLM's copy thread (`vllm/simple.py`): `copy_blocks` with parameters that are known. */

#ifndef KVSAN_COPIES_H
#define KVSAN_COPIES_H

#include "hook.h"
#include "in_place.h"
#include "order.h"

#define ROUTES 8 /* so many parameters are known here; Python knows all */

/* Where copies with some parameters go, as it stands in a line. */
typedef struct {
    PyObject *params, *attrs;
    const void *order; /* an unsigned int in the memory of `attrs`: it may change */
    int loads;
    Text label, on;
} Route;

enum { STREAM_ORDER = 1, CALL_ORDER, ANY_ORDER }; /* CUmemcpySrcAccessOrder */

typedef struct {
    PyObject_HEAD
    Plan *plan;
    PyObject *engine, *gpu; /* of which `pools` are the names */
    Py_ssize_t known;
    Text pools[2], orders[ANY_ORDER]; /* the GPU's first */
    size_t size;                      /* of the site; 0: it has no form here */
    unsigned char site[PLAIN_MOST + 2];
    Route routes[ROUTES];
} Routes;

/* ── as Python sees it ────────────────────────────────────────────────────────────────────────────────────────── */

/* `Routes(plan, engine, orders, site)`: the names of the source orders 1 to 3; the site is a string or None. */
static PyObject *Routes_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *plan, *engine, *orders[ANY_ORDER], *site;
    const char *letters;
    Routes *self;
    size_t size, i;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!O(UUU)O:Routes", &PlanType, &plan, &engine, &orders[0], &orders[1], &orders[2],
                          &site))
        return NULL;
    if ((self = (Routes *)type->tp_alloc(type, 0)) == NULL)
        return NULL;
    self->plan = (Plan *)Py_NewRef(plan);
    self->engine = Py_NewRef(engine);
    if (site == Py_None) {
        self->site[0] = NONE;
        self->size = 1;
    } else if ((letters = plain(site, &size)) != NULL)
        self->size = (size_t)(put_plain(self->site, letters, size) - self->site);
    for (i = 0; i < ANY_ORDER; i++)
        text_of(&self->orders[i], orders[i]);
    return (PyObject *)self;
}

static Route *route_of(Routes *self, PyObject *params)
{
    Py_ssize_t i;
    for (i = 0; i < self->known; i++)
        if (self->routes[i].params == params)
            return &self->routes[i];
    return NULL;
}

/* `add(params, attrs, address, loads, label, on)`: copies with these parameters. `attrs` of theirs has at `address` the
   source order, an unsigned int, as long as it lives. */
static PyObject *Routes_add(Routes *self, PyObject *args)
{
    PyObject *params, *attrs, *label, *on;
    unsigned long long address;
    Route *route;
    int loads;
    if (!PyArg_ParseTuple(args, "OOKpUU:add", &params, &attrs, &address, &loads, &label, &on))
        return NULL;
    if ((route = route_of(self, params)) == NULL) {
        if (self->known == ROUTES)
            Py_RETURN_NONE;
        route = &self->routes[self->known++];
        route->params = Py_NewRef(params);
    }
    text_of(&route->label, label);
    text_of(&route->on, on);
    route->loads = loads;
    route->order = (const void *)(uintptr_t)address;
    Py_XSETREF(route->attrs, Py_NewRef(attrs));
    Py_RETURN_NONE;
}

/* `name(gpu, cpu)`: the pools, as long as the engine's own is `gpu`. */
static PyObject *Routes_name(Routes *self, PyObject *args)
{
    PyObject *gpu, *cpu;
    if (!PyArg_ParseTuple(args, "UU:name", &gpu, &cpu))
        return NULL;
    text_of(&self->pools[0], gpu);
    text_of(&self->pools[1], cpu);
    Py_XSETREF(self->gpu, Py_NewRef(gpu));
    Py_RETURN_NONE;
}

static int Routes_traverse(Routes *self, visitproc visit, void *arg)
{
    Py_ssize_t i;
    Py_VISIT(self->engine);
    for (i = 0; i < self->known; i++) {
        Py_VISIT(self->routes[i].params);
        Py_VISIT(self->routes[i].attrs);
    }
    return 0;
}

/* No `tp_clear`, as with a hook. */
static void Routes_dealloc(Routes *self)
{
    Py_ssize_t i;
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->plan);
    Py_XDECREF(self->engine);
    Py_XDECREF(self->gpu);
    for (i = 0; i < self->known; i++) {
        Py_DECREF(self->routes[i].params);
        Py_XDECREF(self->routes[i].attrs);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Routes_methods[] = {
    {"add", (PyCFunction)Routes_add, METH_VARARGS, "add(params, attrs, address, loads, label, on)"},
    {"name", (PyCFunction)Routes_name, METH_VARARGS, "name(gpu, cpu)"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject RoutesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Routes",
    .tp_doc = "Routes(plan, engine, orders, site): where the copies of known parameters go.",
    .tp_basicsize = sizeof(Routes),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Routes_new,
    .tp_dealloc = (destructor)Routes_dealloc,
    .tp_traverse = (traverseproc)Routes_traverse,
    .tp_methods = Routes_methods,
};

/* ── a copy ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Whether `pools` are named for the engine's own as it is now; -1 with an error. */
static int pools_named(Routes *self)
{
    PyObject *gpu = pool_of(self->engine);
    int same;
    if (gpu == NULL)
        return -1;
    same = self->gpu != NULL && self->pools[0].size && self->pools[1].size &&
           (gpu == self->gpu || (PyUnicode_CheckExact(gpu) && PyUnicode_Compare(gpu, self->gpu) == 0));
    Py_DECREF(gpu);
    return same;
}

/* `{pool: ids}`: 0; 1 for ids that have no form there; -1 with an error. */
static inline int pack_ids(Packed *packed, const Text *pool, PyObject *ids)
{
    if (pack_room(packed, 1 + sizeof(Text)) < 0)
        return -1;
    packed->bytes[packed->used++] = 0x80 | 1;
    packed->used = (size_t)(put_text(packed->bytes + packed->used, pool) - packed->bytes);
    return pack_value(packed, ids, 1);
}

/* The line of a copy under the lock, as `copy_in_place` makes it. 1: it is there; 0: it cannot be put in place; -1 with
   an error. */
static int route_in_place(State *state, Routes *routes, const Route *route, const Text *order, PyObject *const *ids)
{
    Text read, written;
    Slot *slot = slot_of_sort(routes->plan, PLANS);
    Py_ssize_t ops = slot == NULL ? 0 : slot->ops;
    Packed *packed;
    unsigned char *at;
    size_t before;
    int done = op_may(state);
    if (done <= 0)
        return done;
    text_copy(&read, &routes->pools[route->loads]);
    text_copy(&written, &routes->pools[!route->loads]);
    if ((at = op_begins(state, 13, ACCESS)) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    packed = state->packed;
    before = packed->used; /* nothing runs from here on */
    packed->used = (size_t)(put_text(at, &route->on) - packed->bytes);
    if ((done = pack_ids(packed, &read, ids[0])) == 0 && (done = pack_ids(packed, &written, ids[1])) == 0)
        done = pack_room(packed, 5 * (TEXT_ROOM + 9) + PLAIN_MOST);
    if (done != 0) {
        packed->used = before;
        return done < 0 ? -1 : 0;
    }
    at = put_text(put_text(packed->bytes + packed->used, &route->label), order);
    *at++ = YES; /* a batch */
    if (ops > 0)
        at = put_int(at, ops - 1);
    else
        *at++ = NONE;
    *at++ = NONE; /* step and owner */
    *at++ = NONE;
    memcpy(at, routes->site, routes->size);
    return op_ends(state, at + routes->size) < 0 ? -1 : 1;
}

/* A copy was issued: 1, and its line is there; 0: Python is to look at it; -1 with an error. */
static int route_logs(Hook *self, Routes *routes, PyObject *const *args)
{
    State *state = self->state;
    Route *route = route_of(routes, args[2]);
    unsigned int order;
    Lock *lock;
    int done;
    if (route == NULL || route->order == NULL || !route->label.size || !route->on.size || !routes->size ||
        state->packed == NULL || !PyList_CheckExact(args[1]) || PyList_GET_SIZE(args[1]) == 0)
        return 0;
    memcpy(&order, route->order, sizeof(order));
    if (order < STREAM_ORDER || order > ANY_ORDER)
        return 0;
    if ((done = pools_named(routes)) <= 0)
        return done;
    if (state_enter(state, &lock) < 0)
        return -1;
    done = route_in_place(state, routes, route, &routes->orders[order - 1], args);
    state_leave(lock);
    return done;
}

/* `copy_blocks(src_block_ids, dst_block_ids, params)`. What is not usual about the copy itself goes to `more[1]`, with
   the same arguments, once it has been issued. */
FUNCTION(hook_copy_blocks)
{
    Hook *self = (Hook *)callable;
    PyObject *result, *said;
    int done = 0;
    if (kwnames != NULL || PyVectorcall_NARGS(count) != 3)
        return hook_slow(self, args, count, kwnames);
    if ((result = hook_original(self, args, count, NULL)) == NULL || PASSES(self))
        return result;
    if (PyList_CheckExact(args[0])) {
        if (PyList_GET_SIZE(args[0]) == 0)
            return result;
        hook_fetch(self);
        done = route_logs(self, (Routes *)PyTuple_GET_ITEM(self->more, 0), args);
    }
    if (done != 0) {
        self->counter->count++;
        return done < 0 ? hook_failed(self, result) : result;
    }
    if ((said = PyObject_Vectorcall(PyTuple_GET_ITEM(self->more, 1), args, 3, NULL)) == NULL)
        Py_CLEAR(result);
    Py_XDECREF(said);
    return result;
}

#endif
