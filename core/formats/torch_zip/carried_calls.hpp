#pragma once

#include <string>

#include "core/formats/torch_zip/pickle.hpp"

namespace reshard::pickle {

/// The first call under a node that must not be carried into a file of ours, as "module.name"; "" when there is none.
///
/// We call nothing, but who loads the file does: a reduce node names a function and its arguments. Classes and functions of Python's own library,
/// of PyTorch and of NumPy are carried when they are on a list of harmless ones; those of other packages are carried as they are, because the
/// loader needs its own classes (and must trust its own packages).
std::string call_not_to_carry(Document const& document, NodeId id);

}  // namespace reshard::pickle
