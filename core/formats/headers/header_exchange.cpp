#include "core/formats/headers/header_exchange.hpp"

#include <algorithm>

#include "core/base/text/wire.hpp"

namespace reshard {

void end_with_first(HeaderExchange const& exchange, std::optional<Error> const& failure,
                    std::size_t item) {
  WireWriter mine;
  if (failure) mine.number(item);
  std::optional<std::uint64_t> first;
  for (std::string const& packed : exchange.all_gather(mine.bytes())) {
    WireReader in(packed, "the item that failed on a rank");
    if (in.empty()) continue;
    std::uint64_t const failed = in.number();
    in.finish();
    first = std::min(first.value_or(failed), failed);
  }
  if (!first) return;
  exchange.together([&] {
    if (failure && item == *first) throw Error(*failure);
  });
}

}  // namespace reshard
