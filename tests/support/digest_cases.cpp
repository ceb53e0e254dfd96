#include "tests/support/digest_cases.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "core/base/hash/crc64.hpp"
#include "core/device/digest_program.hpp"

namespace reshard::test {
namespace {

using Random = std::mt19937_64;

constexpr std::byte poison{0xcd};

std::uint64_t below(Random& random, std::uint64_t end) { return random() % end; }

/// Calls each(from, to) for every run.
template <class Each>
void for_each_run(OwnedPiece const& piece, Each each) {
  std::vector<std::uint64_t> index(piece.dims.size());
  for (;;) {
    std::int64_t from = 0;
    std::int64_t to = 0;
    for (std::size_t d = 0; d < index.size(); ++d) {
      from += static_cast<std::int64_t>(index[d]) * piece.dims[d].from_stride;
      to += static_cast<std::int64_t>(index[d]) * piece.dims[d].to_stride;
    }
    each(piece.from + static_cast<std::uint64_t>(from), piece.at + static_cast<std::uint64_t>(to));
    std::size_t d = index.size();
    while (d > 0 && ++index[d - 1] == piece.dims[d - 1].count) index[--d] = 0;
    if (d == 0) return;
  }
}

/// The CRC of the tensor with zeros for all that is not the piece's. Bytes before its first one are
/// left out, zeros behind its last one are put in by the one operation that the definition has for
/// a zero byte, as far as that is affordable.
std::uint64_t slow_share(OwnedPiece const& piece, std::vector<std::byte> const& memory) {
  std::map<std::uint64_t, std::uint64_t> runs;  // place in the tensor -> place in memory
  for_each_run(piece, [&](std::uint64_t from, std::uint64_t to) { runs[to] = from; });
  std::vector<std::byte> bytes;
  std::uint64_t const begin = runs.begin()->first;
  std::uint64_t const end = runs.rbegin()->first + piece.run_bytes;
  constexpr std::uint64_t affordable = 1U << 20U;
  if (end - begin > affordable) {  // far apart: run by run
    std::uint64_t sum = 0;
    for (auto const& [to, from] : runs)
      sum ^= crc64_shifted(slow_digest(std::span(memory).subspan(from, piece.run_bytes)),
                           piece.tensor_bytes - to - piece.run_bytes);
    return sum;
  }
  std::uint64_t const behind = piece.tensor_bytes - end;
  bytes.resize(end - begin + (behind < affordable ? behind : 0));
  for (auto const& [to, from] : runs)
    std::memcpy(bytes.data() + (to - begin), memory.data() + from, piece.run_bytes);
  std::uint64_t const crc = slow_digest(bytes);
  return behind < affordable ? crc : crc64_shifted(crc, behind);
}

/// An axis of a box: where it begins in the tensor and how long it is.
struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t extent = 0;
};

using Box = std::vector<Interval>;

/// The tensor's box cut several times.
std::vector<Box> random_boxes(std::vector<std::uint64_t> const& shape, Random& random) {
  std::vector<Box> boxes(1);
  for (std::uint64_t const extent : shape) boxes[0].push_back({0, extent});
  for (std::uint64_t cuts = below(random, 6); cuts > 0; --cuts) {
    std::size_t const which = below(random, boxes.size());
    std::size_t const axis = below(random, shape.size());
    Interval& interval = boxes[which][axis];
    if (interval.extent < 2) continue;
    std::uint64_t const first = 1 + below(random, interval.extent - 1);
    Box rest = boxes[which];
    rest[axis] = {interval.begin + first, interval.extent - first};
    interval.extent = first;
    boxes.push_back(rest);
  }
  return boxes;
}

/// A box stored with its axes in another order, or in the same, perhaps backwards, perhaps with
/// gaps between the elements of an axis.
OwnedPiece random_piece(Box const& box, std::vector<std::uint64_t> const& shape,
                        std::uint64_t element_bytes, std::vector<std::byte>& memory,
                        Random& random) {
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0U);
  if (below(random, 2) == 0) std::ranges::shuffle(order, random);
  OwnedPiece piece{.run_bytes = element_bytes, .dims = std::vector<ByteDim>(shape.size())};
  piece.from = memory.size() + below(random, 24);
  auto step = static_cast<std::int64_t>(element_bytes);
  for (std::size_t i = order.size(); i-- > 0;) {
    std::uint64_t const extent = box[order[i]].extent;
    piece.dims[order[i]].count = extent;
    piece.dims[order[i]].from_stride = step;
    step = step * static_cast<std::int64_t>(extent) +
           (below(random, 4) == 0 ? static_cast<std::int64_t>(below(random, 20)) : 0);
  }
  memory.resize(piece.from + static_cast<std::uint64_t>(step));
  auto to_step = static_cast<std::int64_t>(element_bytes);
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    ByteDim& dim = piece.dims[axis];
    dim.to_stride = to_step;
    piece.at += box[axis].begin * static_cast<std::uint64_t>(to_step);
    to_step *= static_cast<std::int64_t>(shape[axis]);
    if (below(random, 8) == 0) {  // from its last index to its first
      auto const last = static_cast<std::int64_t>(dim.count - 1);
      piece.from += static_cast<std::uint64_t>(last * dim.from_stride);
      piece.at += static_cast<std::uint64_t>(last * dim.to_stride);
      dim.from_stride = -dim.from_stride;
      dim.to_stride = -dim.to_stride;
    }
  }
  piece.tensor_bytes = static_cast<std::uint64_t>(to_step);
  if (below(random, 3) == 0) std::ranges::shuffle(piece.dims, random);
  return piece;
}

/// Shares, the program, and what it adds to the sums, which are not empty before.
void finish(DigestCase& digest, Random& random) {
  DeviceCase& device = digest.device;
  for (std::byte& byte : device.from) byte = static_cast<std::byte>(random());
  std::uint64_t end = 0;
  for (OwnedPiece const& piece : digest.pieces) end = std::max(end, piece.sum + 8);
  device.to.assign(end + 24, poison);
  device.wanted = device.to;
  std::vector<DigestRequest> requests;
  for (OwnedPiece const& piece : digest.pieces) {
    digest.shares.push_back(slow_share(piece, device.from));
    std::uint64_t sum = 0;
    std::memcpy(&sum, device.wanted.data() + piece.sum, sizeof sum);
    sum ^= digest.shares.back();
    std::memcpy(device.wanted.data() + piece.sum, &sum, sizeof sum);
    requests.push_back(
        {piece.from, piece.at, piece.run_bytes, piece.dims, piece.tensor_bytes, piece.sum});
  }
  device.program.bytes.resize(below(random, 40));  // of another one
  add_digests(device.program, requests);
}

}  // namespace

std::uint64_t slow_digest(std::span<std::byte const> bytes) {
  std::uint64_t crc = 0;
  for (std::byte const byte : bytes) {
    crc ^= std::to_integer<std::uint64_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc & 1U) != 0 ? (crc >> 1U) ^ 0xc96c5795d7870f42U : crc >> 1U;
  }
  return crc;
}

DigestCase random_digest_case(std::uint64_t seed) {
  Random random(seed);
  DigestCase digest;
  digest.device.name = fmt::format("a tensor, seed {}", seed);
  std::uint64_t const element_bytes =
      std::array<std::uint64_t, 7>{1, 2, 3, 4, 8, 16, 24}[below(random, 7)];
  std::vector<std::uint64_t> shape(1 + below(random, 5));
  std::uint64_t left = std::uint64_t{1} << (2 + below(random, 14));
  for (std::uint64_t& extent : shape) {
    extent = 1 + below(random, std::min<std::uint64_t>(left, below(random, 3) == 0 ? left : 30));
    left = std::max<std::uint64_t>(1, left / extent);
  }
  if (below(random, 2) == 0) std::ranges::shuffle(shape, random);
  for (Box const& box : random_boxes(shape, random)) {
    digest.pieces.push_back(random_piece(box, shape, element_bytes, digest.device.from, random));
    digest.pieces.back().sum = 16;
  }
  std::ranges::shuffle(digest.pieces, random);
  finish(digest, random);
  return digest;
}

DigestCase run_case(std::vector<std::uint64_t> const& lengths, std::uint64_t seed) {
  Random random(seed);
  DigestCase digest;
  digest.device.name = fmt::format("runs, seed {}", seed);
  for (std::uint64_t const length : lengths)
    for (std::uint64_t place = 0; place < 16; ++place) {
      std::uint64_t const before = below(random, 300);
      std::uint64_t const from = (digest.device.from.size() + 15) / 16 * 16 + place;
      digest.pieces.push_back({from,
                               before,
                               length,
                               {},
                               before + length + below(random, 300),
                               8 * digest.pieces.size()});
      digest.device.from.resize(from + length);
    }
  finish(digest, random);
  return digest;
}

DigestCase far_case(std::uint64_t seed) {
  Random random(seed);
  DigestCase digest;
  digest.device.name = fmt::format("far apart, seed {}", seed);
  for (int i = 0; i < 20; ++i) {
    std::uint64_t const run = 1 + below(random, 900);
    std::uint64_t const rows = 1 + below(random, 30);
    auto const stride = static_cast<std::int64_t>(
        run + below(random, std::uint64_t{1} << (10 + below(random, 30))));
    std::uint64_t const extent = (rows - 1) * static_cast<std::uint64_t>(stride) + run;
    OwnedPiece piece{.from = digest.device.from.size() + below(random, 8),
                     .at = random() >> (20 + below(random, 20)),
                     .run_bytes = run,
                     .dims = {}};
    piece.dims.push_back({rows, static_cast<std::int64_t>(run + 3), stride});
    piece.tensor_bytes = piece.at + extent + (random() >> (14 + below(random, 30)));
    piece.sum = 8 * below(random, 4);
    digest.device.from.resize(piece.from + rows * (run + 3));
    digest.pieces.push_back(piece);
  }
  finish(digest, random);
  return digest;
}

}  // namespace reshard::test
