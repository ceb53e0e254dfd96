#pragma once

#include <string>
#include <vector>

#include "core/containers/torch/pickle.hpp"

namespace reshard::pickle {

/// Something that has no place in a file of ours.
struct NotCarried {
  std::string name;      ///< "os.system"; "" for nothing
  bool foreign = false;  ///< a class or function of another package; else one that is refused
                         ///< whatever a job says

  explicit operator bool() const { return !name.empty(); }
};

/// A class or function under a node that must not be in a pickle that we write; one of another
/// package when there is nothing worse.
///
/// We import and call nothing, but who loads the file does. So every name must be on a list
/// (carried_names.hpp), those among arguments too, and what is called must be known to make a value
/// and do nothing else.
NotCarried not_to_carry(Document const& document, NodeId id);

/// The same for all that a pickle holds, values that it drops included: for a file whose bytes are
/// copied as they are.
NotCarried not_to_copy(Document const& document);

/// Which nodes not_to_carry() finds something under.
std::vector<bool> nodes_not_to_carry(Document const& document);

}  // namespace reshard::pickle
