#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/text/wire.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// The texts of every rank, in rank order, on every rank. Collective.
inline std::vector<std::string> gathered_texts(std::vector<std::string> const& mine,
                                               Comm const& comm) {
  std::vector<std::string> all;
  for (std::string const& packed : comm.all_gather(WireWriter().put(mine).bytes()))
    for (std::string& text :
         WireReader(packed, "the texts of a rank").all<std::vector<std::string>>())
      all.push_back(std::move(text));
  return all;
}

}  // namespace reshard
