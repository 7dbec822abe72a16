// All layers of a stack for a few tokens in one call: a list of steps. All threads share the work of each step.
//
// The residual stream is `x`. Other buffers of (M, width) elements follow each other in `scratch`. A step refers to a
// buffer by its offset per token, or by -1 for the residual stream.
#pragma once
#include "activations.h"
#include "decode_attention.h"
#include "gemm.h"

namespace {

enum Kind : Index { NORM, LINEAR, ADD, MULTIPLY, ROTATE, WRITE_KV, SELF_ATTEND, CROSS_ATTEND };

struct Step {
    Kind kind;
    Index wait;  // if not 0, all threads synchronize after the step
    Index source, target;
    // NORM, ROTATE: vectors per token and their width. LINEAR: outputs and inputs. SELF_ATTEND: distances, or 0
    Index rows, width;
    union {
        struct { Index weight, bias, rms; double eps; } norm;
        struct { Index weight, bytes, scale, bias; Activation activation; Index add; } linear;
        struct { Index layer, groups, width, values; } write;
        struct { Index layer, heads, groups, width, biases, buckets; } attention;
    };
};
static_assert(sizeof(Step) == 12 * sizeof(Index), "Python writes 12 integers per step");

struct Layer {
    KVTable self_kv, cross_kv;
};

struct Tokens {
    Index rows, per_row;  // M = rows * per_row
    const Index* columns;  // (M) column of each token
    Index capacity;  // number of columns that can be attended to; one more can be written
    const float *cosines, *sines;  // (M, R)
    Index n_angles;  // R
    Index sources, source_columns;  // number of sources for cross-attention, and of columns of each
    const uint8_t* source_mask;  // (sources, source_columns), or null
};

struct Run {
    const Step* steps;
    Index count;
    float *x, *scratch;
    const Tokens& tokens;
    const Layer* layers;
    Index M;

    float* buffer(Index offset) const { return offset < 0 ? x : scratch + offset * M; }

    void normalize(const Step& step, ThreadRange range) const {
        const auto* weight = (const float*)step.norm.weight;
        const auto* bias = (const float*)step.norm.bias;
        const auto [first, last] = range.split(M * step.rows);
        for (Index row = first; row < last; row++) {
            const float* source = buffer(step.source) + row * step.width;
            float* target = buffer(step.target) + row * step.width;
            float mean = 0, squares = 0;
            if (!step.norm.rms) {
#pragma omp simd reduction(+ : mean)
                for (Index i = 0; i < step.width; i++) mean += source[i];
                mean /= float(step.width);
            }
#pragma omp simd reduction(+ : squares)
            for (Index i = 0; i < step.width; i++) squares += (source[i] - mean) * (source[i] - mean);
            const float scale = 1.0f / std::sqrt(squares / float(step.width) + float(step.norm.eps));
            for (Index i = 0; i < step.width; i++) {
                const float normalized = (source[i] - mean) * scale * weight[i];
                target[i] = bias ? normalized + bias[i] : normalized;
            }
        }
    }

    template <typename W>
    ThreadRange::Range multiply(const Step& step, ThreadRange range, GemmScratch& gemm) const {
        const Product<W> product{buffer(step.source), (const W*)step.linear.weight, (const float*)step.linear.scale,
                                 (const float*)step.linear.bias, buffer(step.target), M, step.width, step.rows,
                                 step.linear.add != 0};
        return ::multiply_range(product, range, gemm);
    }

    void linear(const Step& step, ThreadRange range, GemmScratch& gemm) const {
        const auto [first, last] = step.linear.bytes == 2   ? multiply<uint16_t>(step, range, gemm)
                                   : step.linear.bytes == 1 ? multiply<int8_t>(step, range, gemm)
                                                            : multiply<float>(step, range, gemm);
        if (step.linear.activation != NONE)
            for (Index row = 0; row < M; row++)
                activate(buffer(step.target) + row * step.rows + first, last - first, step.linear.activation);
    }

    void combine(const Step& step, ThreadRange range) const {
        const auto [first, last] = range.split(M * step.width);
        const float* source = buffer(step.source);
        float* target = buffer(step.target);
        if (step.kind == ADD)
            for (Index i = first; i < last; i++) target[i] += source[i];
        else
            for (Index i = first; i < last; i++) target[i] *= source[i];
    }

    void rotate(const Step& step, ThreadRange range) const {
        const Index R = tokens.n_angles;
        const auto [first, last] = range.split(M * step.rows);
        for (Index row = first; row < last; row++) {
            float* head = buffer(step.target) + row * step.width;
            const float *cosine = tokens.cosines + row / step.rows * R, *sine = tokens.sines + row / step.rows * R;
            for (Index i = 0; i < R; i++) {
                const float a = head[i], b = head[i + R];
                // The compiler could fuse another product of the sum in the last elements than in whole vectors.
                head[i] = multiply_add(a, cosine[i], -(b * sine[i]));
                head[i + R] = multiply_add(b, cosine[i], a * sine[i]);
            }
        }
    }

    void write_kv(const Step& step, ThreadRange range) const {
        const auto& shape = step.write;
        const KVTable& table = layers[shape.layer].self_kv;
        const auto [first, last] = range.split(M * shape.groups);
        for (Index i = first; i < last; i++) {
            const Index m = i / shape.groups, g = i % shape.groups, row = m / tokens.per_row, column = tokens.columns[m];
            float* key = table.keys + row * table.key_strides[0] + g * table.key_strides[1] + column * table.key_strides[2];
            float* value =
                table.values + row * table.value_strides[0] + g * table.value_strides[1] + column * table.value_strides[2];
            memcpy(key, buffer(step.source) + i * shape.width, shape.width * sizeof(float));
            memcpy(value, buffer(shape.values) + i * shape.width, shape.width * sizeof(float));
        }
    }

    DecodeAttention attention_of(const Step& step) const {
        const auto& shape = step.attention;
        const bool cross = step.kind == CROSS_ATTEND;
        DecodeAttention attention{};
        attention.q = buffer(step.source), attention.y = buffer(step.target);
        attention.M = M, attention.H = shape.heads, attention.G = shape.groups, attention.K = shape.width;
        attention.rows = cross ? M / tokens.sources : tokens.per_row;
        attention.table = cross ? layers[shape.layer].cross_kv : layers[shape.layer].self_kv;
        attention.columns = cross ? tokens.source_columns : tokens.capacity;
        attention.mask = cross ? tokens.source_mask : nullptr;
        attention.mask_strides[0] = tokens.source_columns;
        attention.last = cross ? nullptr : tokens.columns;
        attention.biases = (const float*)shape.biases;
        attention.buckets = (const int32_t*)shape.buckets;
        return attention;
    }

    void run_range(ThreadRange range) const {
        std::vector<int32_t> visible;
        std::vector<float> weights;
        GemmScratch gemm;
        for (const Step* step = steps; step < steps + count; step++) {
            switch (step->kind) {
                case NORM: normalize(*step, range); break;
                case LINEAR: linear(*step, range, gemm); break;
                case ADD:
                case MULTIPLY: combine(*step, range); break;
                case ROTATE: rotate(*step, range); break;
                case WRITE_KV: write_kv(*step, range); break;
                case SELF_ATTEND:
                case CROSS_ATTEND: attention_of(*step).run_range(range, visible, weights); break;
            }
            if (step->wait) {
#pragma omp barrier
            }
        }
    }
};

}  // namespace
