/* Copy windows of images from memory that was read into a batch: crop, flip and order of the channels in one pass over the pixels.
 *
 * setup.py compiles it, and pixels.py loads it through ctypes, which releases the interpreter's lock for a whole batch. It needs nothing but
 * memcpy and memset of whichever C library the process has. Where it is missing, pixels.py does the same with numpy, byte for byte.
 */
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct {
    int64_t height, width, channels; /* of an image */
    int64_t planes;                  /* 1: planes in the order blue, green, red, as Caffe has them; 0: rows of pixels */
    int64_t rows, columns;           /* of a window */
} Form;

typedef struct {
    int32_t row, column, mirrored; /* The window may reach over the edges of the image, where pixels are zero. */
} Window;

enum { STREAMED = 4 << 20 }; /* Bytes of a batch from which on caches do not keep it until it is used, with the batches beside it. */

/* Copy bytes; `streamed`: past the caches, which would first read from memory what is overwritten. */
static void copy(uint8_t *out, const uint8_t *in, int64_t count, int streamed) {
#if defined(__x86_64__)
    int64_t at = -(intptr_t)out & 63;
    if (streamed && count >= at + 64) {
        memcpy(out, in, (size_t)at);
        for (; at + 64 <= count; at += 64) {
            for (int64_t part = at; part < at + 64; part += 16)
                _mm_stream_si128((__m128i *)(out + part), _mm_loadu_si128((const __m128i *)(in + part)));
        }
        out += at, in += at, count -= at;
    }
#else
    (void)streamed;
#endif
    memcpy(out, in, (size_t)count);
}

#if defined(__x86_64__)
/* Mirror pixels of three bytes, five at a time, and return how many; the last ones are left, because 16 bytes are read and written. */
__attribute__((target("ssse3"))) static int64_t mirror_fives(uint8_t *out, const uint8_t *in, int64_t count) {
    const __m128i order = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
    int64_t done = 0;
    for (; done + 6 <= count; done += 5) {
        const uint8_t *from = in + 3 * (count - done - 5) - 1;
        _mm_storeu_si128((__m128i *)(out + 3 * done), _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)from), order));
    }
    return done;
}
#endif

static void mirror(uint8_t *out, const uint8_t *in, int64_t count, int64_t channels) {
    int64_t done = 0;
#if defined(__x86_64__)
    if (channels == 3 && __builtin_cpu_supports("ssse3")) done = mirror_fives(out, in, count);
#endif
    for (; done < count; done++)
        for (int64_t channel = 0; channel < channels; channel++) out[done * channels + channel] = in[(count - 1 - done) * channels + channel];
}

/* Copy `count` pixels of one row. `in` is the first of them, in the last plane where there are planes. */
static void copy_pixels(uint8_t *out, const uint8_t *in, int64_t count, const Form *form, int mirrored, int streamed) {
    if (!form->planes) {
        if (mirrored)
            mirror(out, in, count, form->channels);
        else
            copy(out, in, count * form->channels, streamed);
        return;
    }
    for (int64_t channel = 0; channel < form->channels; channel++, in -= form->height * form->width)
        for (int64_t pixel = 0; pixel < count; pixel++) out[pixel * form->channels + channel] = in[mirrored ? count - 1 - pixel : pixel];
}

static void copy_window(uint8_t *out, const uint8_t *image, const Form *form, const Window *window, int streamed) {
    const int64_t pixel_bytes = form->planes ? 1 : form->channels, row_bytes = form->columns * form->channels;
    const int64_t first = window->column > 0 ? window->column : 0;
    const int64_t end = window->column + form->columns < form->width ? window->column + form->columns : form->width;
    const int64_t before = first - window->column, kept = end > first ? end - first : 0;
    const int64_t start = window->mirrored ? form->columns - before - kept : before;
    if (!form->planes && !window->mirrored && !window->row && form->rows == form->height && kept == form->width && kept == form->columns) {
        copy(out, image, form->rows * row_bytes, streamed);
        return;
    }
    streamed = streamed && row_bytes % 16 == 0; /* else too many lines of a cache belong to two rows */
    if (form->planes) image += (form->channels - 1) * form->height * form->width;
    for (int64_t row = window->row; row < window->row + form->rows; row++, out += row_bytes) {
        if (row < 0 || row >= form->height) {
            memset(out, 0, (size_t)row_bytes);
            continue;
        }
        if (kept < form->columns) memset(out, 0, (size_t)row_bytes);
        const uint8_t *from = image + (row * form->width + first) * pixel_bytes;
        if (window->mirrored) /* which goes from right to left: the processor foresees that less well, and took three times as long */
            for (int64_t ahead = 0; ahead < kept * pixel_bytes; ahead += 64) __builtin_prefetch(from + form->width * pixel_bytes + ahead);
        copy_pixels(out + start * form->channels, from, kept, form, window->mirrored != 0, streamed);
    }
}

/* Parse the varint at `*at`, of 1 to 10 bytes, and move `*at` to its end. Return 0 where there is none, or one of more than 64 bits. */
static int parse_varint(const uint8_t *value, int64_t size, int64_t *at, uint64_t *number) {
    *number = 0;
    for (int shift = 0; shift < 70 && *at < size; shift += 7) {
        const uint8_t byte = value[(*at)++];
        *number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return shift < 63 || byte < 2;
    }
    return 0;
}

enum { OTHER, RAW, ENCODED };

/* Find where the pixels of a raw Datum of this form, or the file of an encoded one, begin and end, and its label, if its fields are in
 * protobuf's own order. datum.py reads any OTHER. */
static int parse_datum(const uint8_t *value, int64_t size, const Form *form, int64_t *label, int64_t place[2]) {
    const int64_t sizes[3] = {form->channels, form->height, form->width};
    const uint8_t tags[4] = {0x08, 0x10, 0x18, 0x22};
    uint64_t number;
    int64_t at = 0;
    for (int field = 0; field < 4; field++)
        if (at >= size || value[at++] != tags[field] || !parse_varint(value, size, &at, &number) ||
            (field < 3 && number != (uint64_t)sizes[field]))
            return OTHER;
    if (number > (uint64_t)(size - at)) return OTHER;
    place[0] = at;
    place[1] = at += (int64_t)number;
    if (at >= size || value[at++] != 0x28 || !parse_varint(value, size, &at, &number)) return OTHER;
    *label = (int32_t)(uint32_t)number;
    if (at == size) return place[1] - place[0] == sizes[0] * sizes[1] * sizes[2] ? RAW : OTHER;
    return size - at == 2 && value[at] == 0x38 && value[at + 1] == 1 ? ENCODED : OTHER;
}

/* Return the checksum of the source that this was compiled from, as setup.py has computed it. */
uint32_t slipway_source(void) { return SLIPWAY_SOURCE; }

/* Copy a window of one image. */
void slipway_copy_window(uint8_t *out, const uint8_t *image, const Form *form, const Window *window) { copy_window(out, image, form, window, 0); }

/* Copy a window of each of `count` raw values, to one place after the other in `out`, and the labels of those and of encoded ones. `left[i]`
 * is where in value i the file of an image begins and ends; 0, 0 where nothing is left to do; 0, -1 of any other. */
void slipway_copy_raw(uint8_t *out, const uint8_t *const *values, const int64_t *sizes, int64_t count, const Form *form,
                      const Window *windows, int64_t *labels, int64_t (*left)[2]) {
    const int64_t each = form->rows * form->columns * form->channels;
    for (int64_t index = 0; index < count; index++) {
        const int kind = parse_datum(values[index], sizes[index], form, &labels[index], left[index]);
        if (kind == RAW) copy_window(out + index * each, values[index] + left[index][0], form, &windows[index], count * each >= STREAMED);
        if (kind != ENCODED) left[index][0] = 0, left[index][1] = kind == RAW ? 0 : -1;
    }
#if defined(__x86_64__)
    _mm_sfence(); /* before another process is told */
#endif
}

/* Add each channel's values of `count` pixels to `totals`, and behind them their squares. There are 1 or 3 channels. */
void slipway_add_sums(const uint8_t *pixels, int64_t count, int64_t channels, uint64_t *totals) {
    enum { LANES = 48, MOST = 65536 * LANES }; /* so many bytes keep a lane's squares below 2^32 */
    const int64_t size = count * channels;
    for (int64_t at = 0; at < size;) {
        uint32_t sums[LANES], squares[LANES];
        const int64_t end = size - at < MOST ? size : at + MOST;
        memset(sums, 0, sizeof sums);
        memset(squares, 0, sizeof squares);
        for (; at + LANES <= end; at += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                const uint16_t value = pixels[at + lane], square = (uint16_t)(value * value);
                sums[lane] += value;
                squares[lane] += square;
            }
        for (int lane = 0; at < end; at++, lane++) sums[lane] += pixels[at], squares[lane] += (uint32_t)(pixels[at] * pixels[at]);
        for (int lane = 0; lane < LANES; lane++) totals[lane % channels] += sums[lane], totals[channels + lane % channels] += squares[lane];
    }
}

/* Walk over the marks of a JPEG file as jpeg_scans does in image_header.py. Return twice the number of scans, and 1 more if it is whole. */
int64_t slipway_jpeg_scans(const uint8_t *data, int64_t size) {
    enum { CODES = 1, QUANTISATION = 2, FRAME = 4 };
    int64_t scans = 0, at = 2;
    for (int seen = 0;;) {
        for (;; at++) { /* to the next mark: neither a stuffed byte nor a restart, which stand inside of a scan */
#if defined(__x86_64__)
            const __m128i ones = _mm_set1_epi8(-1);
            while (at + 16 <= size && !_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(data + at)), ones))) at += 16;
#endif
            if (at + 2 > size) return 2 * scans;
            if (data[at] == 0xFF && data[at + 1] != 0 && data[at + 1] != 0xFF && data[at + 1] >> 3 != 0xD0 >> 3) break;
        }
        const int mark = data[at + 1];
        at += 2;
        if (mark == 0xD9) return 2 * scans + (scans && at == size && seen == (CODES | QUANTISATION | FRAME));
        if (mark == 0x01 || mark == 0xD8) continue; /* which have no length */
        seen |= mark == 0xC4 ? CODES : mark == 0xDB ? QUANTISATION : mark >= 0xC0 && mark <= 0xC2 ? FRAME : 0;
        scans += mark == 0xDA;
        const int64_t length = at + 2 <= size ? data[at] << 8 | data[at + 1] : 0;
        at += length ? length : 2;
    }
}
