// All layers of a stack for few tokens, in one call: a list of steps, each shared among the threads.
//
// Numbers live in buffers, one behind the other in `scratch`, (M, width) each; the stream itself is `x`. A step names a
// buffer by the numbers a token has before it, or by -1 for the stream.
#pragma once
#include "activations.h"
#include "few_queries.h"
#include "many_rows.h"

namespace {

enum Kind : Index { NORM, LINEAR, PLUS, TIMES, ROTATE, REMEMBER, LOOK_BACK, LOOK_ACROSS };

struct Step {
    Kind kind;
    Index wait;  // for the other threads, when it is done
    Index from, to;
    Index rows, width;  // NORM, ROTATE: vectors a token, and their width. LINEAR: its outputs and inputs
    union {
        struct { Index weight, bias, rms; double eps; } norm;
        struct { Index weight, bytes, scale, bias; Activation activation; Index add; } linear;
        struct { Index layer, heads, groups, width, values; } attention;
    };
};
static_assert(sizeof(Step) == 12 * sizeof(Index), "as the list is written");

struct Layer {
    Table own, across;
};

struct Tokens {
    Index rows, each;            // M = rows x each
    const Index* columns;        // (M) where each goes
    Index capacity;              // columns that may be seen; one more is there to be written to
    const float *cosines, *sines;  // (M, R)
    Index turned;                // R
    Index sources, source_columns;  // of what is looked across at
    const uint8_t* real;         // (sources, source_columns), or null
};

struct Run {
    const Step* steps;
    Index count;
    float *x, *scratch;
    const Tokens& tokens;
    const Layer* layers;
    Index M;

    float* buffer(Index place) const { return place < 0 ? x : scratch + place * M; }

    void normalise(const Step& step, Part part) const {
        const auto* weight = (const float*)step.norm.weight;
        const auto* bias = (const float*)step.norm.bias;
        const auto [first, last] = part.of(M * step.rows);
        for (Index row = first; row < last; row++) {
            const float* from = buffer(step.from) + row * step.width;
            float* to = buffer(step.to) + row * step.width;
            float mean = 0, squares = 0;
            if (!step.norm.rms) {
#pragma omp simd reduction(+ : mean)
                for (Index i = 0; i < step.width; i++) mean += from[i];
                mean /= float(step.width);
            }
#pragma omp simd reduction(+ : squares)
            for (Index i = 0; i < step.width; i++) squares += (from[i] - mean) * (from[i] - mean);
            const float scale = 1.0f / std::sqrt(squares / float(step.width) + float(step.norm.eps));
            for (Index i = 0; i < step.width; i++) {
                const float normed = (from[i] - mean) * scale * weight[i];
                to[i] = bias ? normed + bias[i] : normed;
            }
        }
    }

    template <typename W>
    Part::Range multiply(const Step& step, Part part, Panels& panels) const {
        const Product<W> product{buffer(step.from), (const W*)step.linear.weight, (const float*)step.linear.scale,
                                 (const float*)step.linear.bias, buffer(step.to), M, step.width, step.rows,
                                 step.linear.add != 0};
        return ::share(product, part, panels);
    }

    void linear(const Step& step, Part part, Panels& panels) const {
        const auto [first, last] = step.linear.bytes == 2   ? multiply<uint16_t>(step, part, panels)
                                   : step.linear.bytes == 1 ? multiply<int8_t>(step, part, panels)
                                                            : multiply<float>(step, part, panels);
        if (step.linear.activation != NONE)
            for (Index row = 0; row < M; row++)
                activate(buffer(step.to) + row * step.rows + first, last - first, step.linear.activation);
    }

    void combine(const Step& step, Part part) const {
        const auto [first, last] = part.of(M * step.width);
        const float* from = buffer(step.from);
        float* to = buffer(step.to);
        if (step.kind == PLUS)
            for (Index i = first; i < last; i++) to[i] += from[i];
        else
            for (Index i = first; i < last; i++) to[i] *= from[i];
    }

    void rotate(const Step& step, Part part) const {
        const Index R = tokens.turned;
        const auto [first, last] = part.of(M * step.rows);
        for (Index row = first; row < last; row++) {
            float* head = buffer(step.to) + row * step.width;
            const float *cosine = tokens.cosines + row / step.rows * R, *sine = tokens.sines + row / step.rows * R;
            for (Index i = 0; i < R; i++) {
                const float a = head[i], b = head[i + R];
                head[i] = a * cosine[i] - b * sine[i];
                head[i + R] = b * cosine[i] + a * sine[i];
            }
        }
    }

    void remember(const Step& step, Part part) const {
        const auto& given = step.attention;
        const Table& table = layers[given.layer].own;
        const auto [first, last] = part.of(M * given.groups);
        for (Index i = first; i < last; i++) {
            const Index m = i / given.groups, g = i % given.groups, row = m / tokens.each, column = tokens.columns[m];
            float* key = table.keys + row * table.key_strides[0] + g * table.key_strides[1] + column * table.key_strides[2];
            float* value =
                table.values + row * table.value_strides[0] + g * table.value_strides[1] + column * table.value_strides[2];
            memcpy(key, buffer(step.from) + i * given.width, given.width * sizeof(float));
            memcpy(value, buffer(given.values) + i * given.width, given.width * sizeof(float));
        }
    }

    Attention attention(const Step& step) const {
        const auto& given = step.attention;
        const bool across = step.kind == LOOK_ACROSS;
        Attention look{};
        look.q = buffer(step.from), look.y = buffer(step.to);
        look.M = M, look.H = given.heads, look.G = given.groups, look.K = given.width;
        look.rows = across ? M / tokens.sources : tokens.each;
        look.table = across ? layers[given.layer].across : layers[given.layer].own;
        look.columns = across ? tokens.source_columns : tokens.capacity;
        look.mask = across ? tokens.real : nullptr;
        look.mask_strides[0] = tokens.source_columns;
        look.last = across ? nullptr : tokens.columns;
        return look;
    }

    void share(Part part) const {
        std::vector<int32_t> seen;
        std::vector<float> weights;
        Panels panels;
        for (const Step* step = steps; step < steps + count; step++) {
            switch (step->kind) {
                case NORM: normalise(*step, part); break;
                case LINEAR: linear(*step, part, panels); break;
                case PLUS:
                case TIMES: combine(*step, part); break;
                case ROTATE: rotate(*step, part); break;
                case REMEMBER: remember(*step, part); break;
                case LOOK_BACK:
                case LOOK_ACROSS: attention(*step).share(part, seen, weights); break;
            }
            if (step->wait) {
#pragma omp barrier
            }
        }
    }
};

}  // namespace
