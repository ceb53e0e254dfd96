#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace reshard::megatron {

/// The root of a model's names, from the key of its word embedding: "" or a text that ends in a dot
/// ("language_model."); nullopt for another key. A vision model has its language model under such a
/// root, and its other parts next to it.
std::optional<std::string> root_in(std::string_view name);

/// The name without its root; "" for a name that is not under it, or not of a language model (those
/// begin with decoder, embedding, mtp or output_layer).
std::string_view behind_root(std::string_view name, std::string_view root);

/// Whether a name is a tensor or state of Megatron's own vision tower or the projection after it.
bool is_of_tower(std::string_view name);

/// The parts next to the language model, by the first word of their names, with the number of
/// names: {"vision_model": 42}. Tables of rotations, which every program computes, are left out.
std::map<std::string, std::size_t> parts_beside(std::set<std::string_view> const& names,
                                                std::string_view root);

}  // namespace reshard::megatron
