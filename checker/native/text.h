/* A name as it stands in a line on its way: MessagePack, in place, so that no string has to be fetched for it. */

#ifndef KVSAN_TEXT_H
#define KVSAN_TEXT_H

#include "common.h"
#include "packed.h"

#define TEXT_ROOM 39

typedef struct {
    unsigned char size; /* 0: it is too long, and stands elsewhere */
    unsigned char bytes[TEXT_ROOM];
} Text;

static void text_set(Text *self, const char *bytes, size_t size)
{
    size_t head = size < 32 ? 1 : 2;
    self->size = 0;
    if (size + head > TEXT_ROOM)
        return;
    self->bytes[0] = (unsigned char)(head == 1 ? 0xa0 | size : 0xd9);
    if (head == 2)
        self->bytes[1] = (unsigned char)size;
    memcpy(self->bytes + head, bytes, size);
    self->size = (unsigned char)(size + head);
}

/* Of a string; what has no form there has no size. */
static void text_of(Text *self, PyObject *name)
{
    Py_ssize_t size;
    const char *bytes = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &size) : NULL;
    self->size = 0;
    if (bytes == NULL)
        PyErr_Clear();
    else
        text_set(self, bytes, (size_t)size);
}

/* As a string again, a new reference. */
static PyObject *text_string(const Text *self)
{
    size_t head = self->bytes[0] == 0xd9 ? 2 : 1;
    return PyUnicode_DecodeUTF8((const char *)self->bytes + head, (Py_ssize_t)(self->size - head), NULL);
}

/* The name and what is behind it; where the next item goes. There is room. */
static inline unsigned char *put_text(unsigned char *at, const Text *text)
{
    memcpy(at, text->bytes, TEXT_ROOM); /* all of it: moves, and no call */
    return at + text->size;
}

/* A number of eight bytes. */
static inline unsigned char *put_long(unsigned char *at, unsigned long long number)
{
    int i;
    *at = 0xcf;
    for (i = 8; i > 0; i--, number >>= 8) /* compilers make one swap of it */
        at[i] = (unsigned char)number;
    return at + 9;
}

#endif
