/* Tensor methods that mostly are none of kvsan's (`torch/copies.py`). `more` is the list of registered pools, or a pair of it
   and what the method looks for. */

#ifndef KVSAN_TENSORS_H
#define KVSAN_TENSORS_H

#include "order.h"

static inline int is_non_blocking(PyObject *name)
{
    return name == s_non_blocking || PyUnicode_Compare(name, s_non_blocking) == 0;
}

/* `target.copy_(source, non_blocking)`: without a registered pool one that does not block is none of ours */
FUNCTION(hook_copy)
{
    Hook *self = (Hook *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(count);
    if (PASSES(self))
        return hook_original(self, args, count, kwnames);
    if (PyList_GET_SIZE(self->more) == 0) {
        if (kwnames == NULL && given == 3 && args[2] == Py_True)
            return hook_original(self, args, count, kwnames);
        if (kwnames != NULL && given == 2 && PyTuple_GET_SIZE(kwnames) == 1 && args[2] == Py_True &&
            is_non_blocking(PyTuple_GET_ITEM(kwnames, 0)))
            return hook_original(self, args, count, kwnames);
    }
    return hook_slow(self, args, count, kwnames);
}

/* `tensor.to(…)`: the same; nor does a change of type alone */
FUNCTION(hook_to)
{
    Hook *self = (Hook *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(count), i;
    if (PASSES(self))
        return hook_original(self, args, count, kwnames);
    if (PyList_GET_SIZE(PyTuple_GET_ITEM(self->more, 0)) == 0) {
        if (kwnames == NULL && given == 2 && (PyObject *)Py_TYPE(args[1]) == PyTuple_GET_ITEM(self->more, 1))
            return hook_original(self, args, count, kwnames);
        for (i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++)
            if (args[given + i] == Py_True && is_non_blocking(PyTuple_GET_ITEM(kwnames, i)))
                return hook_original(self, args, count, kwnames);
    }
    return hook_slow(self, args, count, kwnames);
}

#endif
