#pragma once

#include <span>
#include <string>
#include <vector>

namespace reshard {

/// The order in which a framework registers the parameters of a module: depth first, children in
/// the order of its source. Dotted names are compared part by part: parts without a number at their
/// end first, then by that number ("layers.2" before "layers.10"; weight0, bias0, weight1), then by
/// the place of the word in `words`.
///
/// Returns positions in `names`, in order of registration. Two names whose order the words do not
/// give are an Error of kind usage that begins with `place`.
std::vector<std::size_t> registration_order(std::span<std::string const> names,
                                            std::span<std::string const> words,
                                            std::string const& place);

}  // namespace reshard
