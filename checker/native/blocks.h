/* Lives of vLLM's blocks (`vllm/pools.py`), and hooks that mostly count (`vllm/scheduler.py`, `vllm/simple.py`). */

#ifndef KVSAN_BLOCKS_H
#define KVSAN_BLOCKS_H

#include "hook.h"
#include "order.h"

static Place place_ref_cnt, place_is_null, place_block_id;

/* `block.ref_cnt == 0 and not block.is_null`; -1 with an error. */
static inline int is_free(PyObject *block)
{
    PyObject *found = place_read(&place_ref_cnt, s_ref_cnt, block);
    int answer;
    if (found == NULL)
        return -1;
    answer = found == zero ? 1 : PyObject_RichCompareBool(found, zero, Py_EQ);
    Py_DECREF(found);
    if (answer != 1)
        return answer;
    if ((found = place_read(&place_is_null, s_is_null, block)) == NULL)
        return -1;
    answer = found == Py_False ? 1 : PyObject_Not(found);
    Py_DECREF(found);
    return answer;
}

/* Ids of blocks: numbers, or a list where one of them is none or there are many. */
typedef struct {
    Py_ssize_t count;
    PyObject *list; /* NULL: `numbers` has them */
    long long numbers[IDS_AT_ONCE];
} BlockIds;

/* The ids so far, in a list. 0, or -1 with an error. */
static COLD int ids_listed(BlockIds *ids)
{
    Py_ssize_t i;
    if (ids->list != NULL)
        return 0;
    if ((ids->list = PyList_New(ids->count)) == NULL)
        return -1;
    for (i = 0; i < ids->count; i++) {
        PyObject *id = PyLong_FromLongLong(ids->numbers[i]);
        if (id == NULL) {
            Py_CLEAR(ids->list);
            return -1;
        }
        PyList_SET_ITEM(ids->list, i, id);
    }
    return 0;
}

/* One more, if it is one (`free_only`: a block that nobody refers to). 0, or -1 with an error. */
static COLD int ids_add_slowly(BlockIds *ids, PyObject *block, int free_only)
{
    PyObject *id = NULL;
    int done;
    Py_INCREF(block); /* its attributes may change the list that it is in */
    done = free_only ? is_free(block) : 1;
    if (done == 1) {
        done = -1;
        if ((id = place_read(&place_block_id, s_block_id, block)) != NULL && ids_listed(ids) == 0)
            done = PyList_Append(ids->list, id);
        ids->count += done == 0;
        Py_XDECREF(id);
    }
    Py_DECREF(block);
    return done;
}

/* As `is_free`, where its attributes are what and where they are expected; else -1, without an error. Runs nothing. */
static inline int seems_free(PyObject *block)
{
    PyObject *count, *null;
    if (RARE(Py_TYPE(block) != place_ref_cnt.type) || RARE(Py_TYPE(block) != place_is_null.type))
        return -1;
    count = *place_in(&place_ref_cnt, block);
    if (count != zero) /* there is one zero */
        return USUAL(count != NULL) && USUAL(PyLong_CheckExact(count)) ? 0 : -1;
    null = *place_in(&place_is_null, block);
    return USUAL(null == Py_False) ? 1 : null == Py_True ? 0 : -1;
}

/* As `ids_add_slowly`, which is asked where it is not the usual block with the usual number. */
static inline int ids_add(BlockIds *ids, PyObject *block, int free_only)
{
    PyObject *id;
    int over = 1, is_one = free_only ? seems_free(block) : 1;
    if (is_one == 0)
        return 0;
    if (USUAL(is_one > 0) && USUAL(ids->list == NULL) && USUAL(ids->count < IDS_AT_ONCE) &&
        USUAL((id = place_peek(&place_block_id, block)) != NULL) && USUAL(PyLong_CheckExact(id)))
        ids->numbers[ids->count] = whole(id, &over);
    if (RARE(over))
        return ids_add_slowly(ids, block, free_only);
    ids->count++;
    return 0;
}

/* The ids of blocks in a list or tuple. `free_only`: of those that nobody refers to and that are blocks. 0, or -1 with an
   error; `ids->list` is a reference. */
static HOT int ids_of(PyObject *blocks, int free_only, BlockIds *ids)
{
    Py_ssize_t i;
    ids->count = 0;
    ids->list = NULL;
    for (i = 0; i < PySequence_Fast_GET_SIZE(blocks); i++)
        if (ids_add(ids, PySequence_Fast_GET_ITEM(blocks, i), free_only) < 0) {
            Py_CLEAR(ids->list);
            return -1;
        }
    return 0;
}

/* The same where they are not put in place. */
static COLD int lives_slowly(State *state, int code, PyObject *pool, BlockIds *ids)
{
    PyObject *by = state_thread(state), *own = NULL;
    int done = -1;
    if (by != NULL && ids_listed(ids) == 0 && (own = PyList_GetSlice(ids->list, 0, ids->count)) != NULL)
        done = state_life(state, code, pool, own, by);
    Py_XDECREF(own);
    Py_XDECREF(by);
    return done;
}

/* The same from this pool on. */
static COLD int lives_from(State *state, int code, PyObject *pools, BlockIds *ids, Py_ssize_t i)
{
    Lock *lock;
    Text by;
    int done;
    if (state_enter(state, &lock) < 0)
        return -1;
    done = state_thread_text(state, &by);
    for (; done >= 0 && i < PyTuple_GET_SIZE(pools); i++) {
        PyObject *pool = PyTuple_GET_ITEM(pools, i);
        done = ids->list == NULL ? state_lives(state, code, pool, &by, ids->numbers, ids->count) : 0;
        if (done == 0)
            done = lives_slowly(state, code, pool, ids);
    }
    state_leave(lock);
    return done;
}

/* `recorder.lives`: the same ids in each of the pools. 0, or -1 with an error. */
static HOT int lives(State *state, int code, PyObject *pools, BlockIds *ids)
{
    Py_ssize_t i = 0, size = PyTuple_GET_SIZE(pools);
    if (USUAL(ids->list == NULL) && USUAL(lock_is_free(state))) {
        uint64_t thread = state_of_thread();
        while (i < size && USUAL(lives_at_once(state, thread, code, PyTuple_GET_ITEM(pools, i), ids->numbers, ids->count)))
            i++;
    }
    return USUAL(i == size) ? 0 : lives_from(state, code, pools, ids, i);
}

/* The pools that a `BlockPool` was marked with, a new reference; NULL without an error if it was not. */
static PyObject *marked(State *state, PyObject *pool)
{
    PyObject *pools = keep_read(&state->keep, POOLS_OF, pool);
    if (USUAL(pools != NULL) && RARE(!PyTuple_CheckExact(pools) || PyTuple_GET_SIZE(pools) == 0))
        Py_CLEAR(pools);
    return pools;
}

/* `BlockPool.get_new_blocks(count)` */
FUNCTION(hook_alloc)
{
    Hook *self = (Hook *)callable;
    PyObject *result, *pools, *blocks;
    BlockIds ids;
    if (RARE(PASSES(self)))
        return hook_original(self, args, count, kwnames);
    if (RARE(kwnames != NULL) || RARE(PyVectorcall_NARGS(count) != 2))
        return hook_slow(self, args, count, kwnames);
    if (RARE((result = hook_original(self, args, count, NULL)) == NULL) || RARE(PASSES(self)))
        return result;
    if (RARE((pools = marked(self->state, args[0])) == NULL))
        return PyErr_Occurred() ? hook_failed(self, result) : result;
    self->counter->count++;
    blocks = USUAL(PyList_CheckExact(result)) ? Py_NewRef(result) : PySequence_Fast(result, "get_new_blocks gives no blocks");
    ids.list = NULL;
    if (RARE(blocks == NULL) || RARE(ids_of(blocks, 0, &ids) < 0) || RARE(lives(self->state, ALLOC, pools, &ids) < 0))
        result = hook_failed(self, result);
    Py_XDECREF(blocks);
    if (RARE(ids.list != NULL))
        Py_DECREF(ids.list);
    let_one_go(pools);
    return result;
}

/* `BlockPool.free_blocks(blocks)`: mostly of a window that did not move, so of none; often a generator */
FUNCTION(hook_free)
{
    Hook *self = (Hook *)callable;
    PyObject *result, *pools, *blocks, *call[2];
    BlockIds ids;
    if (RARE(PASSES(self)))
        return hook_original(self, args, count, kwnames);
    if (RARE(kwnames != NULL) || RARE(PyVectorcall_NARGS(count) != 2))
        return hook_slow(self, args, count, kwnames);
    if (USUAL(PyList_CheckExact(args[1]) && PyList_GET_SIZE(args[1]) == 0)) {
        self->counter->count++;
        return hook_original(self, args, count, NULL);
    }
    if (RARE((pools = marked(self->state, args[0])) == NULL))
        return PyErr_Occurred() ? NULL : hook_original(self, args, count, NULL);
    self->counter->count++;
    if (RARE((blocks = PySequence_List(args[1])) == NULL)) {
        Py_DECREF(pools);
        return NULL;
    }
    call[0] = args[0];
    call[1] = blocks;
    result = hook_original(self, call, 2, NULL);
    if (USUAL(result != NULL) && PyList_GET_SIZE(blocks) > 0) {
        if (RARE(ids_of(blocks, 1, &ids) < 0) || (ids.count > 0 && RARE(lives(self->state, FREE, pools, &ids) < 0)))
            result = hook_failed(self, result);
        if (RARE(ids.list != NULL))
            Py_DECREF(ids.list);
    }
    Py_DECREF(blocks);
    let_one_go(pools);
    return result;
}

/* Whether a list or tuple is of blocks, and not of a sequence for each group: by its first. -1 with an error of the
   engine's. */
static int holds_blocks(PyObject *blocks)
{
    PyObject *first = PySequence_Fast_GET_SIZE(blocks) > 0 ? PySequence_Fast_GET_ITEM(blocks, 0) : NULL, *found;
    if (first == NULL || place_peek(&place_ref_cnt, first) != NULL)
        return 1;
    Py_INCREF(first);
    found = look_up(first, s_ref_cnt);
    Py_DECREF(first);
    Py_XDECREF(found);
    return found != NULL ? 1 : let_go();
}

/* `BlockPool.touch(blocks)`: those that are free now are taken back */
FUNCTION(hook_touch)
{
    Hook *self = (Hook *)callable;
    PyObject *result, *pools;
    BlockIds ids;
    int known;
    if (PASSES(self))
        return hook_original(self, args, count, kwnames);
    known = kwnames == NULL && PyVectorcall_NARGS(count) == 2 &&
            (PyList_CheckExact(args[1]) || PyTuple_CheckExact(args[1])) ? holds_blocks(args[1]) : 0;
    if (known <= 0)
        return known < 0 ? NULL : hook_slow(self, args, count, kwnames);
    if ((pools = marked(self->state, args[0])) == NULL)
        return PyErr_Occurred() ? NULL : hook_original(self, args, count, NULL);
    known = ids_of(args[1], 1, &ids) == 0;
    if (!known && state_failed(self->state, self->where) < 0) {
        Py_DECREF(pools);
        return NULL;
    }
    result = hook_original(self, args, count, NULL);
    if (result != NULL && known && ids.count > 0) {
        self->counter->count++;
        if (lives(self->state, TOUCH, pools, &ids) < 0)
            result = hook_failed(self, result);
    }
    Py_XDECREF(ids.list);
    Py_DECREF(pools);
    return result;
}

/* Whether a scheduler's workers are elsewhere, or it cannot say. -1 with an error of the engine's. */
static COLD int is_remote(PyObject *scheduler)
{
    int there = is_set(scheduler, s__kvsan_remote);
    return there < 0 && let_go() < 0 ? -1 : there != 0;
}

/* `Scheduler.schedule()`: counts where something was scheduled; with workers elsewhere Python hands it over */
FUNCTION(hook_schedule)
{
    Hook *self = (Hook *)callable;
    PyObject *result, *tokens;
    int there = 0, looks = !PASSES(self);
    if (looks && (PyVectorcall_NARGS(count) < 1 || (!all_here(self->state) && (there = is_remote(args[0])) != 0)))
        return there < 0 ? NULL : hook_slow(self, args, count, kwnames);
    if ((result = hook_original(self, args, count, kwnames)) == NULL || !looks || PASSES(self))
        return result;
    tokens = PyObject_GetAttr(result, s_total_num_scheduled_tokens);
    there = tokens == NULL ? -1 : PyObject_IsTrue(tokens);
    Py_XDECREF(tokens);
    if (there < 0)
        return hook_failed(self, result);
    self->counter->count += there;
    return result;
}

/* Whether an object carries a token, or cannot say. -1 with an error of the engine's. */
static COLD int carries_token(PyObject *object)
{
    PyObject *token = look_up(object, asked[asks_kvsan_token]);
    int carries = token != NULL || PyErr_Occurred();
    Py_XDECREF(token);
    return let_go() < 0 ? -1 : carries;
}

/* `Scheduler.update_from_output(scheduler_output, model_runner_output)`: one that comes from another process is taken
   over in Python */
FUNCTION(hook_output)
{
    Hook *self = (Hook *)callable;
    int carries = 0;
    if (!PASSES(self)) {
        if (kwnames != NULL || PyVectorcall_NARGS(count) != 3 ||
            (!all_here(self->state) && (carries = carries_token(args[2])) != 0))
            return carries < 0 ? NULL : hook_slow(self, args, count, kwnames);
        self->counter->count++;
    }
    return hook_original(self, args, count, kwnames);
}

/* `bind_connector_metadata(metadata)`: counts where copies are asked for, in `more` too */
FUNCTION(hook_bound)
{
    Hook *self = (Hook *)callable;
    int asked;
    if (kwnames != NULL || PyVectorcall_NARGS(count) != 2)
        return hook_slow(self, args, count, kwnames);
    if ((asked = is_set(args[1], s_load_gpu_blocks)) == 0)
        asked = is_set(args[1], s_store_gpu_blocks);
    if (asked < 0)
        return let_go() < 0 ? NULL : hook_slow(self, args, count, kwnames);
    if (asked) {
        self->counter->count++;
        ((Counter *)self->more)->count++;
    }
    return hook_original(self, args, count, NULL);
}

#endif
