#pragma once

#include <string>
#include <vector>

#include "core/mapping/maps/map_choice.hpp"
#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// Entries for stored tensors that no map describes: each has an axis of its own for each
/// dimension, under the names that the sides of the job have for it, and goes with the embedding.
class KeptLines {
 public:
  /// `place`: what messages about the entries name.
  explicit KeptLines(std::string place) : place_(std::move(place)) {}

  struct Line {
    std::string name;
    Expression when;  ///< empty: always
  };

  /// A name with braces is an Error of kind source.
  void add(std::vector<Line> const& of_core, std::vector<Line> const& of_family,
           std::vector<Index> const& shape);
  /// Adds all of them to the maps of a job.
  void into(MapChoice& maps) const;

 private:
  MapName stored(Line const& line, std::string const& is) const;
  void add_to(MapFile& map, std::vector<MapName> const& lines) const;

  std::string place_;
  std::vector<NamedExpression> axes_;
  std::vector<MapTensor> tensors_;
  std::vector<MapName> core_;
  std::vector<MapName> family_;
};

}  // namespace reshard
