#pragma once

#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/plan/catalog.hpp"
#include "stages/plan/source/catalog/stored_shares.hpp"

namespace reshard {

/// Fails because a tensor that an entry of a map expects is not stored: an Error of kind source
/// with the likely reason, from what the index and the folder show. `found` says how many of the
/// expected names are there.
[[noreturn]] void fail_lacking_tensor(Checkpoint const& source, std::string const& where,
                                      std::string const& name, std::string const& entry,
                                      std::string const& found);

/// An Error of kind source if the name is there behind a prefix that other keys have too.
/// `prefix_of_source` was cut off the keys of the share.
void check_for_prefix(Storage storage, StoredShare const& share, std::string const& name,
                      std::string const& prefix_of_source);

/// Adds a warning if tensors of the catalogue are copies of others. Copies are not read, so it is
/// not known whether they are.
void warn_of_copies(Catalog const& catalog, std::vector<std::string>& warnings);

}  // namespace reshard
