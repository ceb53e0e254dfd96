#pragma once

#include <string>
#include <vector>

#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard::pickle {

/// A value that must not be written to a file of ours.
struct NotCarried {
  std::string name;      ///< "os.system"; "" if there is none
  bool foreign = false;  ///< a class or function of another package, which a job can allow; others
                         ///< are always refused

  explicit operator bool() const { return !name.empty(); }
};

/// A class or function under a node that must not be in a pickle that we write; one of another
/// package only if no other is found.
///
/// We import and call nothing, but a loader of the file does. So every name must be on a list
/// (carried_names.hpp), those among arguments too, and callables must only make a value.
NotCarried not_to_carry(Document const& document, NodeId id);

/// As not_to_carry(), for all values of a pickle, dropped ones included: for a file whose bytes are
/// copied unchanged.
NotCarried not_to_copy(Document const& document);

/// The arguments (CLASS, dtype, shape, …) of a tensor whose class has parts, as torch saves it:
/// _rebuild_from_type_v2(_rebuild_wrapper_subclass, CLASS, (CLASS, …), {parts}). nullptr for any
/// other value.
Node const* wrapper_arguments(Document const& document, Node const& value);

/// By node: whether not_to_carry() finds a name under it.
std::vector<bool> nodes_not_to_carry(Document const& document);

}  // namespace reshard::pickle
