/* A name as it stands in a line on its way: MessagePack, in place, so that no string has to be fetched for it. */

#ifndef KVSAN_TEXT_H
#define KVSAN_TEXT_H

#include "common.h"

#define TEXT_ROOM 39

typedef struct {
    unsigned char bytes[TEXT_ROOM];
    unsigned char size; /* 0: it is too long, and stands elsewhere */
} Text;

/* All of it, in moves that a compiler makes of these whatever it is told to optimise for. */
static inline void text_copy(void *to, const Text *from)
{
    memcpy(to, from, 16);
    memcpy((char *)to + 16, (const char *)from + 16, 16);
    memcpy((char *)to + 32, (const char *)from + 32, 8);
}

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

/* The same of a string whose reference is taken over. 0, or -1 if it is NULL. */
static int text_taken(Text *self, PyObject *name)
{
    if (name == NULL)
        return -1;
    text_of(self, name);
    Py_DECREF(name);
    return 0;
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
    text_copy(at, text); /* its size too: there is room for one byte more (`line_begins`) */
    return at + text->size;
}

/* The letters of a string that is ASCII and not too long for a line's place, which runs no code; NULL for any other. */
#define PLAIN_MOST 200

static inline const char *plain(PyObject *string, size_t *size)
{
    *size = 0;
    if (string == NULL || !PyUnicode_CheckExact(string) || !PyUnicode_IS_COMPACT_ASCII(string) ||
        PyUnicode_GET_LENGTH(string) > PLAIN_MOST)
        return NULL;
    *size = (size_t)PyUnicode_GET_LENGTH(string);
    return (const char *)PyUnicode_1BYTE_DATA(string);
}

static inline unsigned char *put_plain(unsigned char *at, const char *letters, size_t size)
{
    if (size < 32)
        *at++ = (unsigned char)(0xa0 | size);
    else {
        *at++ = 0xd9;
        *at++ = (unsigned char)size;
    }
    memcpy(at, letters, size);
    return at + size;
}

/* The form of the string that was met last. */
typedef struct {
    PyObject *string; /* a reference, or NULL */
    Text text;
} Spelled;

static COLD const Text *spell(Spelled *self, PyObject *string)
{
    const char *letters;
    size_t size;
    if ((letters = plain(string, &size)) == NULL)
        return NULL;
    text_set(&self->text, letters, size);
    Py_XSETREF(self->string, Py_NewRef(string)); /* what ends is a string, and nothing of ours runs */
    return self->text.size ? &self->text : NULL;
}

/* That of a string which is plain and not too long; NULL for any other. Runs nothing. */
static inline const Text *spelled(Spelled *self, PyObject *string)
{
    return USUAL(self->string == string && self->text.size) ? &self->text : spell(self, string);
}

/* A number, at most nine bytes. */
static unsigned char *put_int(unsigned char *at, long long number)
{
    unsigned long long plain_number = (unsigned long long)number;
    int size = 8;
    if (number >= 0 && number < 1 << 7) {
        *at = (unsigned char)number;
        return at + 1;
    }
    if (number >= 0) {
        size = plain_number < 1 << 8 ? 1 : plain_number < 1 << 16 ? 2 : plain_number <= 0xffffffff ? 4 : 8;
        *at++ = size == 1 ? 0xcc : size == 2 ? 0xcd : size == 4 ? 0xce : 0xcf;
    } else if (number >= -32) {
        *at = (unsigned char)number;
        return at + 1;
    } else
        *at++ = 0xd3;
    while (size > 0)
        *at++ = (unsigned char)(plain_number >> (8 * --size));
    return at;
}

/* The digits of a number that is not negative: to have it printed would touch some sixty cache lines. */
static char *put_digits(char *at, Py_ssize_t number)
{
    char digits[24], *digit = digits + sizeof(digits);
    do
        *--digit = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    memcpy(at, digit, (size_t)(digits + sizeof(digits) - digit));
    return at + (digits + sizeof(digits) - digit);
}

/* So many bytes of a number, the most significant one first: one swap and one move, which compilers do not make of a loop
   everywhere. */
static inline void put_big(unsigned char *at, unsigned long long number, int size)
{
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    number = __builtin_bswap64(number << (64 - 8 * size));
    memcpy(at, &number, (size_t)size);
#else
    while (size > 0)
        *at++ = (unsigned char)(number >> (8 * --size));
#endif
}

/* A number of eight bytes. */
static inline unsigned char *put_long(unsigned char *at, unsigned long long number)
{
    *at = 0xcf;
    put_big(at + 1, number, 8);
    return at + 9;
}

/* A number in five bytes where they are enough, without a branch on how many it needs; else as `put_int`. */
static inline unsigned char *put_wide(unsigned char *at, long long number)
{
    if (RARE((unsigned long long)number > 0xffffffff))
        return put_int(at, number);
    *at = 0xce;
    put_big(at + 1, (unsigned long long)number, 4);
    return at + 5;
}

#endif
