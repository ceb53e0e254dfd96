#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard::pickle {

/// Thrown inside the parser: the bytes end before the pickle does. Not an Error yet, because a
/// legacy container may have more bytes to give.
struct EndOfBytes {
  std::size_t offset = 0;
  std::uint64_t wanted_bytes = 0;
};

/// The origins of a document's values. With a trace every number is a node of its own, also the
/// smallest integers.
struct Trace {
  std::vector<std::size_t> offsets;  ///< by node: of the opcode that made it
  std::vector<std::pair<NodeId, NodeId>>
      made_of;  ///< a node, and another one from which its content was copied
};

/// The document under construction, its limits, and the position in the pickle, shared by all parts
/// of the parser.
class Builder {
 public:
  Builder(std::string_view place, Limits const& limits, Trace* recorded = nullptr)
      : trace(recorded), place_(place), limits_(limits) {}

  NodeId add(Node node);
  /// Accounts for memory of the document; beyond the limit is an Error.
  void charge(std::size_t bytes);
  /// Records the origin of a node's content.
  void note_made_of(NodeId node, NodeId origin) const {
    if (trace != nullptr) trace->made_of.emplace_back(node, origin);
  }
  /// True at the first call for a node: its content is copied only once, so that sharing cannot
  /// multiply memory.
  bool first_copy_of(NodeId id) { return copied_.insert(id).second; }

  /// Errors of kind source: "<place>: byte <offset>: <sentence>".
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::source, "{}: pickle byte {}: {}", place_, offset,
         fmt::format(format, std::forward<Args>(args)...));
  }

  Document document;
  std::size_t offset = 0;  ///< of the opcode at work
  Trace* trace;            ///< nullptr: no trace

 private:
  std::string_view place_;
  Limits limits_;
  std::size_t used_bytes_ = 0;
  std::unordered_set<NodeId> copied_;
};

/// The result of a call: callable(*arguments) as a tensor, bytes, set, … for the known calls, else
/// a reduce node.
NodeId make_call(Builder& builder, NodeId callable, NodeId arguments);

/// The node of a persistent id, which must be ('storage', class, key, location, count) and, in old
/// files, a sixth item None.
NodeId make_storage(Builder& builder, NodeId persistent_id);

/// "dict", "list", …: for messages.
std::string_view kind_name(Kind kind);

/// parse(), but running out of bytes throws EndOfBytes.
Document parse_prefix(std::span<std::byte const> bytes, std::string_view place,
                      std::size_t* consumed, Limits const& limits, Trace* trace = nullptr);

}  // namespace reshard::pickle
