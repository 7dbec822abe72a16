// A layer's list of steps, executed by `fused_step` and by an interpreter in double precision.
#pragma once
#include "inputs.h"

namespace {

struct Program {
    static constexpr Index CAPACITY = 12, SPARE = CAPACITY + 1, SOURCE = 9;
    const Index B = between(1, 3), T = between(1, 3), M = B * T, G = between(1, 2), H = G * between(1, 2);
    const Index K = 8 * between(1, 3), R = one_in(2) ? K / 2 : K / 4, D = between(3, 40), F = between(3, 40);
    const Index queries = D, keys = queries + H * K, values = keys + G * K, mixed = values + G * K, hidden = mixed + H * K;
    const Index gated = hidden + F, width = gated + F;  // offsets of buffers, in numbers per token
    Memory<float> x{M * D}, scratch{M * width}, cosines{M * R}, sines{M * R};
    Memory<Index> columns{M};
    Memory<uint8_t> source_mask{one_in(2) ? B * SOURCE : 0};
    Table self_keys{B, G, SPARE, K, false}, self_values{B, G, SPARE, K, false};
    Table cross_keys{B, G, SOURCE, K, true}, cross_values{B, G, SOURCE, K, true};
    std::vector<Step> steps;
    std::vector<std::unique_ptr<Memory<float>>> floats;
    std::vector<std::unique_ptr<Memory<uint16_t>>> halves;
    std::vector<std::unique_ptr<Memory<int8_t>>> bytes;

    Index vector(Index count) {
        floats.push_back(std::make_unique<Memory<float>>(count));
        return floats.back()->address();
    }
    Step step(Kind kind, Index source, Index target, Index rows, Index numbers) {
        Step step;
        memset((void*)&step, 0, sizeof step);
        step.kind = kind, step.wait = 1, step.source = source, step.target = target, step.rows = rows, step.width = numbers;
        return step;
    }
    void normalize(Index source, Index target, Index rows, Index numbers) {
        Step norm = step(NORM, source, target, rows, numbers);
        norm.norm.weight = vector(numbers), norm.norm.bias = one_in(2) ? vector(numbers) : 0;
        norm.norm.rms = one_in(2), norm.norm.eps = 0.1;
        steps.push_back(norm);
    }
    void product(Index source, Index target, Index outputs, Index inputs, bool add = false) {
        Step linear = step(LINEAR, source, target, outputs, inputs);
        auto& kind = linear.linear;
        kind.bytes = one_in(3) ? 1 : one_in(2) ? 2 : 4, kind.add = add;
        if (kind.bytes == 4) kind.weight = vector(outputs * inputs);
        if (kind.bytes == 2) {
            halves.push_back(std::make_unique<Memory<uint16_t>>(outputs * inputs));
            kind.weight = halves.back()->address();
        }
        if (kind.bytes == 1) {
            bytes.push_back(std::make_unique<Memory<int8_t>>(outputs * inputs));
            kind.weight = bytes.back()->address();
        }
        Memory<float>* scale = nullptr;  // keeps sums near 1, since errors grow with each step
        kind.scale = vector(outputs), scale = floats.back().get();
        for (Index i = 0; i < outputs; i++) (*scale)[i] *= kind.bytes == 1 ? 1e-3f : 0.05f;
        kind.bias = one_in(2) ? vector(outputs) : 0;
        kind.activation = add ? NONE : Activation(between(NONE, RELU_SQUARED));
        steps.push_back(linear);
    }
    void attend(Kind kind) {
        Step attention = step(kind, queries, mixed, 0, 0);
        attention.attention = {0, H, G, K, 0};
        steps.push_back(attention);
    }

    Program() {
        for (Index m = 0; m < M; m++) columns[m] = m % T ? columns[m - 1] + 1 : between(0, CAPACITY - T);
        normalize(-1, 0, 1, D);
        product(0, queries, H * K, D), product(0, keys, G * K, D), product(0, values, G * K, D);
        normalize(queries, queries, H, K);
        steps.push_back(step(ROTATE, queries, queries, H, K));
        steps.push_back(step(ROTATE, keys, keys, G, K));
        Step write = step(WRITE_KV, keys, keys, 0, 0);
        write.attention = {0, 0, G, K, values};
        steps.push_back(write);
        attend(one_in(2) ? SELF_ATTEND : CROSS_ATTEND);
        product(mixed, -1, D, H * K, true);
        product(-1, hidden, F, D), product(-1, gated, F, D);
        steps.push_back(step(one_in(2) ? ADD : MULTIPLY, gated, hidden, 1, F));
        product(hidden, -1, D, F, true);
        normalize(-1, -1, 1, D);
    }

    // The interpreter, with separate buffers in double precision.
    struct Plain {
        const Program& program;
        std::vector<double> stream, scratch, keys, values;

        double* buffer(Index offset) { return offset < 0 ? stream.data() : scratch.data() + offset * program.M; }

        void normalize(const Step& step) {
            const auto *weight = (const float*)step.norm.weight, *bias = (const float*)step.norm.bias;
            for (Index row = 0; row < program.M * step.rows; row++) {
                const double *from = buffer(step.source) + row * step.width, n = double(step.width);
                const std::vector<double> old(from, from + step.width);
                const double mean = step.norm.rms ? 0 : std::accumulate(old.begin(), old.end(), 0.0) / n;
                double squares = 0;
                for (double number : old) squares += (number - mean) * (number - mean);
                for (Index i = 0; i < step.width; i++)
                    buffer(step.target)[row * step.width + i] =
                        (old[size_t(i)] - mean) / std::sqrt(squares / n + step.norm.eps) * weight[i] + (bias ? bias[i] : 0);
            }
        }
        void product(const Step& step) {
            const auto& kind = step.linear;
            const auto weight = [&](Index i) {
                return kind.bytes == 1   ? widen_one(((const int8_t*)kind.weight)[i])
                       : kind.bytes == 2 ? widen_one(((const uint16_t*)kind.weight)[i])
                                         : ((const float*)kind.weight)[i];
            };
            for (Index m = 0; m < program.M; m++)
                for (Index n = 0; n < step.rows; n++) {
                    double sum = 0;
                    for (Index k = 0; k < step.width; k++)
                        sum += buffer(step.source)[m * step.width + k] * weight(n * step.width + k);
                    sum = sum * ((const float*)kind.scale)[n] + (kind.bias ? ((const float*)kind.bias)[n] : 0);
                    double& place = buffer(step.target)[m * step.rows + n];
                    place = activation_of(kind.add ? place + sum : sum, kind.activation);
                }
        }
        void rotate(const Step& step) {
            const Index R = program.R;
            for (Index row = 0; row < program.M * step.rows; row++)
                for (Index i = 0; i < R; i++) {
                    double *head = buffer(step.target) + row * step.width, a = head[i], b = head[i + R];
                    const double cosine = program.cosines[row / step.rows * R + i], sine = program.sines[row / step.rows * R + i];
                    head[i] = a * cosine - b * sine, head[i + R] = b * cosine + a * sine;
                }
        }
        void attend(const Step& step) {
            const Index K = program.K, H = program.H;
            const bool cross = step.kind == CROSS_ATTEND;
            for (Index m = 0; m < program.M; m++)
                for (Index h = 0; h < H; h++) {
                    const Index b = m / program.T, g = h / (H / program.G);
                    const auto own = [&](const std::vector<double>& table) {
                        return [&table, this, b, g](Index s, Index j) { return table[size_t(place(b, g, s, j))]; };
                    };
                    const auto given = [&](const Table& table) { return [&, b, g](Index s, Index j) { return table(b, g, s, j); }; };
                    const double* query = buffer(step.source) + (m * H + h) * K;
                    const auto y = cross ? attention(query, K, SOURCE, given(program.cross_keys), given(program.cross_values),
                                                     [&](Index s) { return !program.source_mask || program.source_mask[b * SOURCE + s]; })
                                         : attention(query, K, CAPACITY, own(keys), own(values),
                                                     [&](Index s) { return s <= program.columns[m]; });
                    std::copy(y.begin(), y.end(), buffer(step.target) + (m * H + h) * K);
                }
        }
        Index place(Index b, Index g, Index s, Index j) const { return ((b * program.G + g) * SPARE + s) * program.K + j; }

        void run() {
            for (const Step& step : program.steps) {
                switch (step.kind) {
                    case NORM: normalize(step); break;
                    case LINEAR: product(step); break;
                    case ROTATE: rotate(step); break;
                    case SELF_ATTEND:
                    case CROSS_ATTEND: attend(step); break;
                    case ADD:
                    case MULTIPLY:
                        for (Index i = 0; i < program.M * step.width; i++) {
                            double& number = buffer(step.target)[i];
                            number = step.kind == ADD ? number + buffer(step.source)[i] : number * buffer(step.source)[i];
                        }
                        break;
                    case WRITE_KV:
                        for (Index m = 0; m < program.M; m++)
                            for (Index i = 0; i < program.G * program.K; i++) {
                                const Index to = place(m / program.T, i / program.K, program.columns[m], i % program.K);
                                keys[size_t(to)] = buffer(step.source)[m * program.G * program.K + i];
                                values[size_t(to)] = buffer(step.attention.values)[m * program.G * program.K + i];
                            }
                }
            }
        }
    };
};

void try_fused_step(int threads) {
    const Program program;
    const auto copy = [](const Memory<float>& x) { return std::vector<double>(x + 0, x + x.count); };
    Program::Plain plain{program, copy(program.x), copy(program.scratch), copy(program.self_keys.numbers),
                         copy(program.self_values.numbers)};
    const bool is_wrong = one_in(10);
    if (is_wrong) program.columns[program.M - 1] = one_in(2) ? Program::SPARE : -1;
    std::vector<Index> tables = table_of(program.self_keys, program.self_values);
    for (Index number : table_of(program.cross_keys, program.cross_values)) tables.push_back(number);
    const Index sizes[] = {program.B, program.T, Program::CAPACITY, program.R, program.B, Program::SOURCE, 1};
    Index wrong = -1;
    fused_step(program.steps.data(), Index(program.steps.size()), program.x, program.scratch, program.columns, program.cosines,
               program.sines, program.source_mask, sizes, tables.data(), &wrong, threads);
    expect(double(wrong), is_wrong ? double(program.M - 1) : -1, 0);
    if (!is_wrong) plain.run();
    double size = 1;
    for (double number : plain.stream) size = std::max(size, std::abs(number));
    for (Index i = 0; i < program.x.count; i++) expect(program.x[i], plain.stream[size_t(i)], size, 1e-3);
    for (Index i = 0; i < program.self_keys.numbers.count; i++) {
        expect(program.self_keys.numbers[i], plain.keys[size_t(i)], 10, 1e-3);
        expect(program.self_values.numbers[i], plain.values[size_t(i)], 10, 1e-3);
    }
}

}  // namespace
