#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "core/base/text/json.hpp"

namespace reshard {

/// A JSON document whose root is an object. Some members stay text: long lists, whose tree would
/// take many times their bytes. Borrows the text and the place.
class JsonRoot {
 public:
  /// `open`: '[' where the long members are arrays, '{' where they are objects; others become part
  /// of the tree. Errors: as parse_json(). Errors inside a member that stays text are thrown when
  /// its items are read.
  JsonRoot(std::string_view text, std::string_view place,
           std::span<std::string_view const> long_members, char open);

  /// The root; a member that stays text is null in it.
  Json const& members() const { return members_; }

  /// Passes the items of an array member, or the members of an object member, to a function in
  /// order, some of them at a time. False, without a call, if the member is missing or of another
  /// type.
  bool items(std::string_view member,
             std::function<void(std::size_t number, Json const& item)> const& take) const;
  bool entries(std::string_view member,
               std::function<void(std::string const& key, Json const& value)> const& take) const;

 private:
  /// Passes a member to `take`, in parts if it is a long one. False if it is missing or not wanted.
  bool read(std::string_view member, bool (*is_wanted)(Json const&),
            std::function<void(Json const& part)> const& take) const;

  std::string_view place_;
  Json members_;
  std::map<std::string_view, std::string_view> texts_;  ///< with their brackets
};

}  // namespace reshard
