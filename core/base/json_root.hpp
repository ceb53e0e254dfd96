#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "core/base/json.hpp"

namespace reshard {

/// A JSON document whose root is an object, of which some members stay text: lists that are so long
/// that a tree of them would take many times their bytes. Borrows the text and the place.
class JsonRoot {
 public:
  /// `open`: '[' where the long members are arrays, '{' where they are objects; others become part
  /// of the tree. Errors: as parse_json(). Those inside of a member that stays text come once its
  /// items are read.
  JsonRoot(std::string_view text, std::string_view place,
           std::span<std::string_view const> long_members, char open);

  /// The root; a member that stays text is null in it.
  Json const& members() const { return members_; }

  /// Reads the items of a member, or the members of one, in order, some of them at a time. False
  /// where it is not there or no array (no object): nothing was handed on then.
  bool items(std::string_view member,
             std::function<void(std::size_t number, Json const& item)> const& take) const;
  bool entries(std::string_view member,
               std::function<void(std::string const& key, Json const& value)> const& take) const;

 private:
  /// Hands on a member, in parts where it is long. False where it is not there, or not wanted.
  bool read(std::string_view member, bool (*is_wanted)(Json const&),
            std::function<void(Json const& part)> const& take) const;

  std::string_view place_;
  Json members_;
  std::map<std::string_view, std::string_view> texts_;  ///< with their brackets
};

}  // namespace reshard
