#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// A stored name with fields:
/// "decoder.layers.{decoder=layer}.mlp.experts.linear_fc1.weight{expert}". A field is a macro of
/// [names], an expression, or a place and an expression; a place may count in strides:
/// {2*decoder+1=layer} numbers the layers 1, 3, 5, …
class NameTemplate {
 public:
  struct Segment {
    std::string literal;    ///< text before the field
    std::string place;      ///< "decoder" in {decoder=layer}; "" for none
    Index stride = 1;       ///< 2 in {2*decoder+1=layer}: what one index of the place counts for
    Index first = 0;        ///< 1 in it: the number of the first
    Expression expression;  ///< of the field; empty when the field is a macro or there is none
    int macro = -1;         ///< index into the map's macros
  };

  /// `place` is the map's file and line.
  static NameTemplate parse(std::string_view text, std::vector<MapMacro> const& macros,
                            std::string_view place);
  std::vector<Segment> const& segments() const { return segments_; }

 private:
  std::vector<Segment> segments_;
};

}  // namespace reshard
