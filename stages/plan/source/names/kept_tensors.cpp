#include "stages/plan/source/names/kept_tensors.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/root.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "stages/plan/source/catalog/source_names.hpp"
#include "stages/plan/source/names/kept_lines.hpp"
#include "stages/plan/source/names/tower_entries.hpp"
#include "stages/plan/source/names/trainer_names.hpp"

namespace reshard {
namespace {

using Shapes = std::map<std::string, std::vector<Index>>;

bool matches(std::vector<std::string> const& patterns, std::string const& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](std::string const& pattern) { return matches_glob(pattern, name); });
}

class Settler {
 public:
  Settler(MapChoice& maps, Checkpoint const& source, StoredView const& view, Json const& config,
          PlanRequest const& request, std::vector<std::string>& warnings)
      : maps_(maps),
        source_(source),
        view_(view),
        config_(config),
        request_(request),
        warnings_(warnings),
        of_megatron_(source.names == NameOwner::megatron) {
    result_.source = view.traits.names;
  }

  SettledParts run() {
    find();
    if (of_megatron_) source_trainer_ = trainer_of(trainers(), names());
    if (of_megatron_) apply(source_trainer_, result_.source);
    if (of_megatron_ && source_trainer_ == nullptr) name_layers();
    if (maps_.family && !config_.is_null()) tower_.emplace(maps_, config_);
    choose_target();
    if (found_.empty()) return std::move(result_);
    if (request_.read.unmapped == Unmapped::refuse) refuse();
    if (request_.read.unmapped == Unmapped::drop)
      drop();
    else
      keep();
    return std::move(result_);
  }

 private:
  std::vector<std::string> const& patterns() const {
    return maps_.family ? maps_.family->keep : maps_.core.keep;
  }
  std::vector<MapKept> const& trainers() const {
    return maps_.family ? maps_.family->kept : maps_.core.kept;
  }
  bool to_megatron() const {
    return format_of(request_.target.format).target().names == NameOwner::megatron;
  }

  /// The parts beside the language model: by Hugging Face's names, and by those of trainers. Any
  /// other name of a Megatron source is one where nothing is to be kept.
  void find() {
    bool const any = request_.read.unmapped == Unmapped::drop;
    each_stored(source_, view_, [&](std::string const& name, std::vector<Index> const& shape) {
      bool const beside = of_megatron_ &&
                          megatron::behind_root(name, view_.traits.names.root).empty() &&
                          !matches(maps_.core.drop, name) &&
                          (any || std::ranges::any_of(trainers(), [&](MapKept const& one) {
                             return part_of_trainer(one, name).has_value();
                           }));
      if (beside || matches(patterns(), name)) found_.emplace(name, shape);
    });
  }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (auto const& [name, shape] : found_) result.push_back(name);
    return result;
  }

  MapKept const* trainer_called(std::string const& name) const {
    auto const found = std::ranges::find(trainers(), name, &MapKept::name);
    return found == trainers().end() ? nullptr : &*found;
  }

  /// A trainer may have names of its own for layers of a language model alone.
  void name_layers() {
    bool const swift = source_.shares.shape && source_.shares.shape->program == "ms-swift";
    result_.source.trainer = swift ? "swift" : view_.traits.names.trainer;
    source_trainer_ = trainer_called(result_.source.trainer);
  }

  static void apply(MapKept const* trainer, TrainerNames& names) {
    names.trainer = trainer == nullptr ? "" : trainer->name;
    names.tower = trainer != nullptr && has_own(*trainer) ? "mcore" : "family";
  }

  /// [kept.NAME] of the trainer that target.program names; "" for none.
  std::string program_names() const {
    switch (request_.options.named.program) {
      case megatron::TargetProgram::megatron_bridge: return "bridge";
      case megatron::TargetProgram::ms_swift: return "swift";
      default: return "";
    }
  }

  /// The trainer that target.program names, where the family has names of its for all parts. A root
  /// is that of a model with parts beside its language model.
  MapKept const* trainer_of_program(bool dropped) const {
    MapKept const* trainer = dropped ? nullptr : trainer_called(program_names());
    if (trainer == nullptr) return nullptr;
    bool const fits = found_.empty() ? trainer->root.empty() : of_megatron_ || suits(*trainer);
    return fits ? trainer : nullptr;
  }

  void check_program(bool dropped) const {
    std::string const wanted = program_names();
    if (wanted.empty()) return;
    bool const swift = request_.options.named.program == megatron::TargetProgram::ms_swift;
    if (request_.options.named.names != "auto" && request_.options.named.names != wanted)
      fail(ErrorKind::usage,
           "[target] program = \"{}\" and names = \"{}\": it looks for the names of \"{}\". Remove "
           "one of the keys.",
           swift ? "ms-swift" : "megatron-bridge", request_.options.named.names, wanted);
    if (swift && !found_.empty() && !dropped && trainer_of_program(dropped) == nullptr)
      fail(ErrorKind::usage,
           "[target] program = \"ms-swift\": the names that ms-swift has for the parts beside the "
           "language model are not known ({} has no [kept.swift] for all of them). Remove the key, "
           "or set model.unmapped = \"drop\".",
           maps_.family ? maps_.family->name : maps_.core.name);
  }

  /// Without a word: names of the program, of the source, or of the usual trainer of this family; a
  /// language model alone has no root.
  void choose_target() {
    if (!to_megatron()) return;
    bool const dropped = !found_.empty() && request_.read.unmapped == Unmapped::drop;
    check_program(dropped);
    if (request_.options.named.names == "auto") {
      target_trainer_ = trainer_of_program(dropped);
      if (target_trainer_ == nullptr && of_megatron_) {
        // Megatron-LM has no names of a trainer's for the layers of a language model alone.
        if (found_.empty() &&
            request_.options.named.program == megatron::TargetProgram::megatron_lm)
          return;
        if (!dropped) result_.target = result_.source;
        target_trainer_ = dropped ? nullptr : source_trainer_;
        return;
      }
      if (target_trainer_ == nullptr && (found_.empty() || dropped)) return;
      for (MapKept const& trainer : trainers())
        if (target_trainer_ == nullptr && suits(trainer)) target_trainer_ = &trainer;
    } else if (request_.options.named.names != "huggingface") {
      target_trainer_ = named_trainer();
    }
    result_.target.root = target_trainer_ == nullptr ? "" : target_trainer_->root;
    apply(target_trainer_, result_.target);
  }

  bool described(std::string const& name) const { return tower_ && tower_->describes(name); }

  /// Whether a trainer has a place for every part of a source with names of Hugging Face, so that
  /// nothing is left out unasked.
  bool suits(MapKept const& trainer) const {
    return std::ranges::all_of(found_, [&](auto const& part) {
      return !matches(trainer.drop, part.first) &&
             (part_of_family(trainer, part.first) || (has_own(trainer) && described(part.first)));
    });
  }

  MapKept const* named_trainer() const {
    if (MapKept const* known = trainer_called(request_.options.named.names)) return known;
    std::vector<std::string> names{"auto", "huggingface"};
    for (MapKept const& one : trainers()) names.push_back(one.name);
    fail(ErrorKind::usage, "[target] names = \"{}\": {} has no [kept.{}]. Known here: {}.{}",
         request_.options.named.names, maps_.family ? maps_.family->name : maps_.core.name,
         request_.options.named.names, listed(names),
         maps_.family ? "" : " Name the family with model.map and source.config.");
  }

  [[noreturn]] void refuse() const {
    std::vector<std::string> known = patterns();
    if (source_trainer_ != nullptr) {
      known.clear();
      for (MapKeptName const& name : source_trainer_->names) known.push_back(name.trainer);
    }
    bool const logical = format_of(request_.target.format).target().names == NameOwner::logical;
    fail(ErrorKind::usage,
         "[model] unmapped: {} such as '{}' {} not part of what {} describes (its `keep`: {}). Set "
         "model.unmapped = {}.",
         counted(found_.size(), "stored tensor"), found_.begin()->first,
         agreeing(found_.size(), "is", "are"), maps_.family ? maps_.family->name : maps_.core.name,
         listed(known),
         logical ? "\"drop\" to leave them out, or model.map = \"none\" to keep all stored names"
                 : "\"keep\" to copy them byte for byte, or \"drop\" to leave them out");
  }

  void drop() {
    warnings_.push_back(fmt::format("{} such as '{}' {} left out (model.unmapped = \"drop\")",
                                    counted(found_.size(), "stored tensor"), found_.begin()->first,
                                    agreeing(found_.size(), "is", "are")));
    drop_names(of_megatron_ ? names() : patterns());
    result_.note =
        fmt::format("{} beside the language model: left out", counted(found_.size(), "tensor"));
  }

  void drop_names(std::vector<std::string> const& names) {
    maps_.core.drop.insert(maps_.core.drop.end(), names.begin(), names.end());
    if (maps_.family)
      maps_.family->drop.insert(maps_.family->drop.end(), names.begin(), names.end());
  }

  /// Names that a part has on the sides of the job.
  struct Part {
    std::string stored;               ///< in the source
    std::vector<std::string> family;  ///< Hugging Face's, the usual one first
    std::vector<Index> shape;
    bool own = false;  ///< a tensor of the trainer's own
  };

  Part part_of(std::string const& name, std::vector<Index> const& shape) const {
    Part part{name, {name}, shape, false};
    if (of_megatron_) {
      if (source_trainer_ == nullptr) return part;
      auto const found = part_of_trainer(*source_trainer_, name);
      if (!found) return part;
      part.own = found->by->own;
      if (!part.own) part.family = family_names(*found);
      return part;
    }
    for (MapKept const& trainer : trainers())
      if (auto const found = part_of_family(trainer, name); found && !found->by->own) {
        part.family = family_names(*found);
        break;
      }
    return part;
  }

  void keep() {
    check_holds();
    std::vector<Part> parts;
    std::size_t converted = 0;
    for (auto const& [name, shape] : found_) {
      Part part = part_of(name, shape);
      if (is_left_out(part)) continue;
      bool const known =
          part.own || std::ranges::any_of(part.family, [&](auto& one) { return described(one); });
      if (known)
        ++converted;
      else
        parts.push_back(std::move(part));
    }
    warn_of_left_out();
    if (tower_ && !tower_->empty()) switch_on(*tower_);
    std::ranges::sort(parts, {}, [](Part const& part) { return part.family.front(); });
    add_lines(parts);
    result_.note = note(converted, parts.size());
  }

  /// Whether the target's trainer has no place for a part.
  bool is_left_out(Part const& part) {
    if (of_megatron_ || target_trainer_ == nullptr || !matches(target_trainer_->drop, part.stored))
      return false;
    left_out_.push_back(part.stored);
    return true;
  }

  void warn_of_left_out() {
    if (left_out_.empty()) return;
    warnings_.push_back(fmt::format(
        "{} ({}) {} left out: models of [kept.{}] in {} have no such part",
        counted(left_out_.size(), "stored tensor"), listed(left_out_, 4),
        agreeing(left_out_.size(), "is", "are"), target_trainer_->name, maps_.family->name));
    drop_names(target_trainer_->drop);
  }

  void check_holds() const {
    if (format_of(request_.target.format).target().names == NameOwner::logical)
      fail(
          ErrorKind::usage,
          "[model] unmapped = \"keep\": '{}' has no logical name, which every tensor of an HDF5 container needs here. Set it to \"drop\", or "
          "model.map = \"none\" to keep all stored names.",
          found_.begin()->first);
  }

  /// Entries for sides whose tower is not Megatron's own: one for each trainer.
  void switch_on(TowerEntries const& tower) {
    TowerEntries::switch_on(maps_);
    MapFile const family = *maps_.family;
    std::set<MapKept const*> sides;
    if (of_megatron_) sides.insert(source_trainer_);
    if (to_megatron()) sides.insert(target_trainer_);
    for (MapKept const* trainer : sides)
      if (trainer == nullptr || !has_own(*trainer)) tower.add(maps_.core, family, trainer);
  }

  void add_lines(std::vector<Part> const& parts) {
    std::string const place = maps_.family ? maps_.family->name : maps_.core.name;
    KeptLines lines(place);
    for (Part const& part : parts) {
      std::vector<KeptLines::Line> core;
      if (of_megatron_) core.push_back({part.stored, names_of(source_trainer_, place)});
      if (to_megatron() && !(of_megatron_ && source_trainer_ == target_trainer_))
        core.push_back({target_name(part), names_of(target_trainer_, place)});
      if (!of_megatron_ && !to_megatron()) core.push_back({part.stored, {}});
      if (std::ranges::all_of(core, [&](auto const& one) { return one.name == core[0].name; })) {
        core.resize(1);
        core[0].when = {};
      }
      lines.add(core, family_lines(part, place), part.shape);
    }
    lines.into(maps_);
  }

  std::string target_name(Part const& part) const {
    if (target_trainer_ == nullptr) return part.family.front();
    for (std::string const& name : part.family)
      if (auto const found = part_of_family(*target_trainer_, name); found && !found->by->own)
        return trainer_name(*found);
    fail(ErrorKind::usage,
         "[target] names = \"{}\": [kept.{}] of {} has no name for '{}'. Add it to that table, or "
         "choose other names.",
         target_trainer_->name, target_trainer_->name, maps_.family->name, part.family.front());
  }

  /// Hugging Face's names: the usual one, unless the source or the reference has another.
  static std::vector<KeptLines::Line> family_lines(Part const& part, std::string const& place) {
    if (part.family.size() == 1) return {{part.family.front(), {}}};
    std::vector<KeptLines::Line> result;
    std::string none;
    for (std::size_t i = 1; i < part.family.size(); ++i) {
      std::string const has = fmt::format("has('{}')", part.family[i]);
      result.push_back({part.family[i], Expression::parse(none + has, place)});
      none += "not " + has + " and ";
    }
    none.resize(none.size() - std::string_view(" and ").size());
    result.push_back({part.family.front(), Expression::parse(none, place)});
    return result;
  }

  std::string note(std::size_t converted, std::size_t copied) const {
    std::string text =
        fmt::format("{} beside the language model: ", counted(found_.size(), "tensor"));
    if (converted > 0) text += fmt::format("{} by the map, ", converted);
    text += fmt::format("{} byte for byte", copied);
    if (!left_out_.empty()) text += fmt::format(", {} left out", left_out_.size());
    if (!of_megatron_ && !to_megatron()) return text;
    auto const word = [](std::string const& trainer) {
      return trainer.empty() ? std::string("Hugging Face") : trainer;
    };
    text += "; names of " + word(of_megatron_ ? result_.source.trainer : "");
    return text + " -> " + word(to_megatron() ? result_.target.trainer : "");
  }

  MapChoice& maps_;
  Checkpoint const& source_;
  StoredView const& view_;
  Json const& config_;
  PlanRequest const& request_;
  std::vector<std::string>& warnings_;
  bool of_megatron_;
  Shapes found_;
  MapKept const* source_trainer_ = nullptr;  ///< of maps_; nullptr: names of Hugging Face
  MapKept const* target_trainer_ = nullptr;
  std::optional<TowerEntries> tower_;
  std::vector<std::string> left_out_;
  SettledParts result_;
};

}  // namespace

SettledParts settle_unmapped(MapChoice& maps, Checkpoint const& source, StoredView const& view,
                             Json const& config, PlanRequest const& request,
                             std::vector<std::string>& warnings) {
  return Settler(maps, source, view, config, request, warnings).run();
}

void add_kept(MapFile const& from, MapFile& to) {
  for (MapName const& name : from.stored)
    if (name.entries.front().as_it_is) to.stored.push_back(name);
}

void settle_unread(MapChoice const& maps, StoredView const& view, bool megatron,
                   PlanRequest const& request, std::vector<std::string>& warnings) {
  std::vector<std::string> names = view.unread;
  if (request.read.drop_optimizer) std::erase_if(names, is_optimizer_key);
  if (names.empty()) return;
  std::sort(names.begin(), names.end());
  bool const of_model =
      maps.family && std::any_of(names.begin(), names.end(), [&](std::string const& name) {
        return matches(maps.family->keep, name);
      });
  std::string const note = unread_note(names, request.read.prefix);
  if ((megatron || of_model) && request.read.unmapped != Unmapped::drop)
    fail(ErrorKind::usage,
         "[source] prefix: {}: they would be lost, and model.unmapped = \"keep\" cannot copy them, "
         "because the target's names for them are not known. Set model.unmapped = \"drop\" to "
         "leave them out.",
         note);
  warnings.push_back(note + ": they are left out");
}

}  // namespace reshard
