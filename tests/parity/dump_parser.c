/* Stands in for CANN's libascend_dump_parser.so, which is not public: the header of a v2 dump file as JSON.
 *
 * msaccucmp calls ParseDumpProtoToJson(contents, length, path) and reads `path`: proto field names, enums as numbers,
 * 64-bit numbers as strings, every field of a message present. Field numbers are those of DumpData.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const unsigned char *at, *end;
    int bad;
} Span;

typedef struct {
    unsigned number, kind;
    uint64_t value;
    Span bytes;
} Field;

static uint64_t varint(Span *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (in->at >= in->end) break;
        unsigned char byte = *in->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    in->bad = 1;
    return 0;
}

static int next(Span *in, Field *field) {
    if (in->bad || in->at >= in->end) return 0;
    uint64_t tag = varint(in), size = 0;
    field->number = (unsigned)(tag >> 3);
    field->kind = (unsigned)(tag & 7);
    field->value = 0;
    if (field->number == 0) in->bad = 1;
    if (field->kind == 0) {
        field->value = varint(in);
    } else {
        if (field->kind == 1) size = 8;
        else if (field->kind == 5) size = 4;
        else if (field->kind == 2) size = varint(in);
        else in->bad = 1;
        if (in->bad || size > (uint64_t)(in->end - in->at)) {
            in->bad = 1;
            return 0;
        }
        field->bytes = (Span){in->at, in->at + size, 0};
        in->at += size;
    }
    return !in->bad;
}

static void text(FILE *out, Span bytes) {
    fputc('"', out);
    for (; bytes.at < bytes.end; bytes.at++) {
        if (*bytes.at == '"' || *bytes.at == '\\') fprintf(out, "\\%c", *bytes.at);
        else if (*bytes.at < 32) fprintf(out, "\\u%04x", *bytes.at);
        else fputc(*bytes.at, out);
    }
    fputc('"', out);
}

/* One message of scalars, shapes and texts: a letter per field number.
 * n number, l 64-bit number (a string), s text, h shape, o original op, . left out. */
typedef struct {
    unsigned number;
    char kind;
    const char *name;
} Known;

static const Known OUTPUT[] = {{1, 'n', "data_type"}, {2, 'n', "format"}, {3, 'h', "shape"}, {4, 'o', "original_op"},
    {6, 'l', "size"}, {7, 'h', "original_shape"}, {8, 'n', "sub_format"}, {9, 'l', "address"}, {11, 'l', "offset"}, {0}};
static const Known INPUT[] = {{1, 'n', "data_type"}, {2, 'n', "format"}, {3, 'h', "shape"}, {5, 'l', "size"},
    {6, 'h', "original_shape"}, {7, 'n', "sub_format"}, {8, 'l', "address"}, {9, 'l', "offset"}, {0}};
static const Known BUFFER[] = {{1, 'n', "buffer_type"}, {3, 'l', "size"}, {0}};
static const Known SPACE[] = {{1, 'n', "type"}, {3, 'l', "size"}, {0}};
static const Known ATTR[] = {{1, 's', "name"}, {2, 's', "value"}, {0}};
static const Known ORIGINAL[] = {{1, 's', "name"}, {2, 'n', "output_index"}, {3, 'n', "data_type"},
    {4, 'n', "format"}, {0}};

static int shape(FILE *out, Span in) {
    Field field;
    int first = 1;
    fprintf(out, "{\"dim\": [");
    while (next(&in, &field)) {
        if (field.number != 1) continue;
        if (field.kind == 0) {
            fprintf(out, first ? "\"%llu\"" : ", \"%llu\"", (unsigned long long)field.value);
            first = 0;
        } else {
            while (field.bytes.at < field.bytes.end && !field.bytes.bad) {
                fprintf(out, first ? "\"%llu\"" : ", \"%llu\"", (unsigned long long)varint(&field.bytes));
                first = 0;
            }
            in.bad |= field.bytes.bad;
        }
    }
    fprintf(out, "]}");
    return in.bad;
}

static int message(FILE *out, Span in, const Known *known) {
    Field last[16], field;
    int there[16] = {0}, bad = 0;
    while (next(&in, &field))
        for (int i = 0; known[i].name; i++)
            if (known[i].number == field.number) {
                there[i] = 1;
                last[i] = field;
            }
    if (in.bad) return 1;
    fputc('{', out);
    for (int i = 0; known[i].name; i++) {
        Span bytes = there[i] && last[i].kind == 2 ? last[i].bytes : (Span){0, 0, 0};
        unsigned long long value = there[i] ? last[i].value : 0;
        fprintf(out, "%s\"%s\": ", i ? ", " : "", known[i].name);
        switch (known[i].kind) {
            case 'n': fprintf(out, "%d", (int)value); break;
            case 'l': fprintf(out, "\"%llu\"", value); break;
            case 's': text(out, bytes); break;
            case 'h': bad |= shape(out, bytes); break;
            case 'o': bad |= message(out, bytes, ORIGINAL); break;
        }
    }
    fputc('}', out);
    return bad;
}

static int list(FILE *out, Span in, unsigned number, const char *name, const Known *known) {
    Field field;
    int first = 1, bad = 0;
    fprintf(out, ", \"%s\": [", name);
    while (next(&in, &field))
        if (field.number == number && field.kind == 2) {
            if (!first) fprintf(out, ", ");
            first = 0;
            bad |= message(out, field.bytes, known);
        }
    fputc(']', out);
    return bad | in.bad;
}

int ParseDumpProtoToJson(const char *data, size_t length, const char *json_path) {
    uint64_t header = 0;
    if (length < 8) return 1;
    memcpy(&header, data, 8);
    if (header > length - 8) return 1;
    Span in = {(const unsigned char *)data + 8, (const unsigned char *)data + 8 + header, 0}, scan = in;
    Span version = {0, 0, 0}, name = {0, 0, 0};
    unsigned long long time = 0;
    Field field;
    while (next(&scan, &field)) {
        if (field.number == 1 && field.kind == 2) version = field.bytes;
        if (field.number == 2 && field.kind == 0) time = field.value;
        if (field.number == 6 && field.kind == 2) name = field.bytes;
    }
    if (scan.bad) return 1;
    FILE *out = fopen(json_path, "w");
    if (!out) return 1;
    fprintf(out, "{\"version\": ");
    text(out, version);
    fprintf(out, ", \"dump_time\": \"%llu\", \"op_name\": ", time);
    text(out, name);
    int bad = list(out, in, 4, "input", INPUT) | list(out, in, 3, "output", OUTPUT) | list(out, in, 5, "buffer", BUFFER) |
              list(out, in, 8, "space", SPACE) | list(out, in, 7, "attr", ATTR);
    fputc('}', out);
    return fclose(out) || bad;
}
