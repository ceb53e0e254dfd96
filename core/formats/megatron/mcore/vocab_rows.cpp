#include "core/formats/megatron/mcore/vocab_rows.hpp"

#include <algorithm>

#include "core/mapping/maps/config_defaults.hpp"

namespace reshard::megatron {
namespace {

constexpr char const* what = "the padded vocabulary of the checkpoint's args";

}  // namespace

Index padded_rows(Index vocab, Index multiple) {
  return checked_add(vocab, multiple - 1, ErrorKind::source, what) / multiple * multiple;
}

Index vocab_multiple(Json const& args, Index ranks) {
  Json const divisor = fact(args, "make_vocab_size_divisible_by");
  bool const stated = divisor.integer() != nullptr && *divisor.integer() > 0;
  return checked_mul(stated ? *divisor.integer() : Index{128}, std::max<Index>(ranks, 1),
                     ErrorKind::source, what);
}

std::optional<Index> repadded_rows(Index rows, Index from, Index to) {
  if (rows <= 0 || from <= 0 || to <= 0 || rows % from != 0) return std::nullopt;
  Index const most = padded_rows(rows, to);
  return padded_rows(rows - from + 1, to) == most ? std::optional<Index>(most) : std::nullopt;
}

}  // namespace reshard::megatron
