#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace reshard::megatron {

/// What stands before a model's names: of the key of its word embedding, "" or a text that ends in
/// a dot ("language_model."); nothing for another key. A model that sees has its language model
/// under such a root, and its other parts beside that.
std::optional<std::string> root_in(std::string_view name);

/// The name without its root; "" for a name that is not under it, or that no language model has
/// (its names begin with decoder, embedding, mtp or output_layer).
std::string_view behind_root(std::string_view name, std::string_view root);

/// Whether a name is a tensor or state of Megatron's own vision tower or the projection behind it.
bool is_of_tower(std::string_view name);

/// What stands beside the language model, by the first word of its names, with how many of them:
/// {"vision_model": 42}. Tables of rotations, which every program computes, are no part.
std::map<std::string, std::size_t> parts_beside(std::set<std::string_view> const& names,
                                                std::string_view root);

}  // namespace reshard::megatron
