#include "core/device/value_program.hpp"

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "core/base/error.hpp"
#include "core/device/kernels/value_convert.hpp"
#include "core/device/kernels/value_dequantise.hpp"
#include "core/device/program_writer.hpp"
#include "core/quant/convert.hpp"

namespace reshard {
namespace {

/// The requests of one launch while they are collected.
template <class Descriptor>
struct LaunchPart {
  std::vector<Descriptor> descriptors;
  std::uint64_t blocks = 0;

  void add(Descriptor descriptor, std::uint64_t more_blocks) {
    descriptor.first_block = blocks;
    descriptors.push_back(descriptor);
    blocks += more_blocks;
  }
};

template <class Descriptor>
void append(Program& program, KernelKind kind,
            std::map<unsigned, LaunchPart<Descriptor>> const& parts) {
  for (auto const& [variant, part] : parts) {
    std::uint64_t const at =
        append_descriptors(program, std::span<Descriptor const>(part.descriptors));
    program.launches.push_back({.kind = kind,
                                .descriptors = narrow<std::uint32_t>(part.descriptors.size()),
                                .blocks = block_count(part.blocks),
                                .at = at,
                                .variant = static_cast<std::uint8_t>(variant)});
  }
}

unsigned number_of(DType dtype) {
  auto const format = quant::float_format(dtype);
  for (unsigned number = 0; number < stored_formats; ++number)
    if (format == convert_format(number)) return number;
  RESHARD_EXPECT(false);
  return 0;
}

std::uint64_t unsigned_of(Index number) { return static_cast<std::uint64_t>(number); }

DequantiseDescriptor descriptor_of(DequantiseRequest const& request) {
  quant::RowPart const& part = request.part;
  quant::Needs const needs = request.decoder->needs_of(part);
  return {.first_block = 0,
          .to = request.to,
          .codes = request.codes,
          .scales = request.scales,
          .seconds = request.seconds,
          .zero_points = request.zero_points,
          .codes_begin = needs.code_bytes.begin,
          .scales_begin = needs.scales.begin,
          .seconds_begin = needs.seconds.begin,
          .zero_points_begin = needs.zero_points.begin,
          .first_row = part.first_row,
          .first_column = part.first_column,
          .columns = part.columns,
          .count = unsigned_of(part.rows * part.columns),
          .grid = request.decoder->grid()};
}

}  // namespace

void add_converts(Program& program, std::span<ConvertRequest const> requests,
                  std::uint64_t verdict) {
  RESHARD_EXPECT(requests.size() <= requests_of_marks && verdict % 8 == 0);
  std::map<unsigned, LaunchPart<ConvertDescriptor>> parts;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    ConvertRequest const& request = requests[r];
    RESHARD_EXPECT(quant::convertible(request.stored, request.wanted) &&
                   std::isfinite(request.constant) && request.count <= elements_of_marks);
    if (request.count == 0) continue;
    ConvertDescriptor const descriptor{
        .first_block = 0,
        .from = request.from,
        .to = request.to,
        .count = request.count,
        .constant = request.constant,
        .request = r,
        .verdict = verdict,
        .rounds = request.rounding == Rounding::nearest_even ? 1U : 0U};
    unsigned const variant = number_of(request.stored) * wanted_formats + number_of(request.wanted);
    parts[variant].add(
        descriptor,
        value_blocks(request.count, static_cast<std::uint64_t>(bits(request.wanted)) / 8));
  }
  append(program, KernelKind::convert, parts);
}

void add_dequantises(Program& program, std::span<DequantiseRequest const> requests) {
  std::map<unsigned, LaunchPart<DequantiseDescriptor>> parts;
  for (DequantiseRequest const& request : requests) {
    DequantiseDescriptor const descriptor = descriptor_of(request);
    parts[static_cast<unsigned>(descriptor.grid.codes)].add(descriptor,
                                                            value_blocks(descriptor.count, 2));
  }
  append(program, KernelKind::dequantise, parts);
}

void clear_verdict(std::byte* verdict) { std::memset(verdict, 0, verdict_bytes); }

std::optional<InexactPlace> inexact_of(std::byte const* verdict) {
  std::uint64_t mark = 0;
  std::memcpy(&mark, verdict, sizeof mark);
  if (mark == 0) return std::nullopt;
  return InexactPlace{~mark >> element_bits_of_mark, ~mark % elements_of_marks};
}

}  // namespace reshard
