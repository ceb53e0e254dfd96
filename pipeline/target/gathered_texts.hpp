#pragma once

#include <string>
#include <vector>

#include "core/base/json.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// The texts of every rank, in rank order, on every rank. Collective.
inline std::vector<std::string> gathered_texts(std::vector<std::string> const& mine,
                                               Comm const& comm) {
  std::vector<std::string> all;
  for (std::string const& packed :
       comm.all_gather(Json(Json::Array(mine.begin(), mine.end())).dump())) {
    Json const list = parse_json(packed, "texts of a rank");
    for (Json const& item : *list.items()) all.push_back(*item.text());
  }
  return all;
}

}  // namespace reshard
