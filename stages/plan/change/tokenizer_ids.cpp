#include "stages/plan/change/tokenizer_ids.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/model_files.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard {
namespace {

/// The largest id that a tokenizer gives a token.
struct LargestId {
  Index id = -1;
  std::string token;  ///< "" where its file does not say it
  std::string file;
};

/// Of the tokenizer files of a folder: tokenizer.json, vocab.json, added_tokens.json,
/// tokenizer_config.json, and tokenizer.model of SentencePiece. Nothing where it has none of them.
class IdFinder {
  static constexpr std::size_t longest_number = 18;

 public:
  explicit IdFinder(huggingface::Folder const& folder) : folder_(folder) {}

  std::optional<LargestId> run() {
    with("tokenizer.json", [&](Json const& json) {
      Json const vocab = fact(json, "model.vocab");
      add_members(vocab);
      if (auto const* const items = vocab.items(); items != nullptr && !items->empty())
        add(static_cast<Index>(items->size()) - 1, "");
      if (Json const* const added = json.find("added_tokens"))
        if (auto const* const items = added->items())
          for (Json const& token : *items) {
            Json const id = fact(token, "id");
            Json const content = fact(token, "content");
            if (id.integer() != nullptr)
              add(*id.integer(), content.text() == nullptr ? "" : *content.text());
          }
    });
    with("vocab.json", [&](Json const& json) { add_members(json); });
    with("added_tokens.json", [&](Json const& json) { add_members(json); });
    with("tokenizer_config.json", [&](Json const& json) {
      Json const* const added = json.find("added_tokens_decoder");
      if (added == nullptr || added->members() == nullptr) return;
      for (auto const& [id, token] : *added->members()) {
        Index number = -1;
        std::from_chars(id.data(), id.data() + id.size(), number);
        Json const content = fact(token, "content");
        add(number, content.text() == nullptr ? "" : *content.text());
      }
    });
    if (has("tokenizer.model")) {
      file_ = "tokenizer.model";
      std::string const bytes =
          read_text_file(folder_.path / file_, huggingface::largest_sidecar_bytes);
      if (auto const pieces = pieces_of(bytes); pieces > 0) add(pieces - 1, "");
    }
    return largest_.id < 0 ? std::nullopt : std::optional(largest_);
  }

 private:
  bool has(std::string_view name) const {
    return std::ranges::find(folder_.sidecars, name) != folder_.sidecars.end();
  }

  template <class Use>
  void with(std::string_view name, Use const& use) {
    if (!has(name)) return;
    file_ = name;
    std::filesystem::path const path = folder_.path / name;
    std::string const text = read_text_file(path, huggingface::largest_sidecar_bytes);
    use(parse_json(without_long_numbers(text), path.string()));
  }

  /// A tokenizer without a limit states model_max_length = 10^30, beyond what is an id.
  static std::string without_long_numbers(std::string const& text) {
    std::string result;
    bool quoted = false;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t const end =
          quoted ? at : std::min(text.find_first_not_of("0123456789", at), text.size());
      if (end - at > longest_number) {
        result += '0';
        at = end;
        continue;
      }
      if (quoted && text[at] == '\\' && at + 1 < text.size())
        result += text[at++];
      else if (text[at] == '"')
        quoted = !quoted;
      result += text[at++];
    }
    return result;
  }

  void add(Index id, std::string_view token) {
    if (id <= largest_.id) return;
    largest_ = {id, std::string(token), file_};
  }

  void add_members(Json const& json) {
    auto const* const members = json.members();
    if (members == nullptr) return;
    for (auto const& [token, id] : *members)
      if (id.integer() != nullptr) add(*id.integer(), token);
  }

  /// The messages in field 1 of a protobuf message, which is a ModelProto of SentencePiece; 0 where
  /// the bytes are none.
  static Index pieces_of(std::string_view bytes) {
    std::size_t at = 0;
    auto const varint = [&]() -> std::optional<std::uint64_t> {
      std::uint64_t value = 0;
      for (unsigned shift = 0; at < bytes.size() && shift < 64; shift += 7) {
        auto const byte = static_cast<unsigned char>(bytes[at++]);
        value |= std::uint64_t{byte & 0x7fU} << shift;
        if (byte < 0x80U) return value;
      }
      return std::nullopt;
    };
    Index pieces = 0;
    while (at < bytes.size()) {
      auto const key = varint();
      if (!key) return 0;
      std::uint64_t skip = 0;
      switch (*key & 7U) {
        case 0:
          if (!varint()) return 0;
          break;
        case 1: skip = 8; break;
        case 2: {
          auto const length = varint();
          if (!length) return 0;
          skip = *length;
          break;
        }
        case 5: skip = 4; break;
        default: return 0;
      }
      if (skip > bytes.size() - at) return 0;
      at += static_cast<std::size_t>(skip);
      pieces += *key == 10 ? 1 : 0;
    }
    return pieces;
  }

  huggingface::Folder const& folder_;
  std::string file_;  ///< that is read
  LargestId largest_;
};

}  // namespace

void check_tokenizer(Checkpoint const& source, PlanRequest const& request, SourceModel& read) {
  Index const vocab = request.changes.vocab_size;
  if (vocab == 0) return;
  std::optional<huggingface::Folder> const& folder =
      read.facts.reference ? read.facts.reference : read.facts.files;
  std::optional<LargestId> largest;
  if (folder) largest = IdFinder(*folder).run();
  if (!largest)
    if (auto const own = tokenizer_of(source)) largest = IdFinder(*own).run();
  if (!largest) {
    read.warnings.push_back(fmt::format(
        "target.vocab_size = {} was not compared with a tokenizer, because none lies beside the "
        "source",
        vocab));
    return;
  }
  if (largest->id >= vocab)
    fail(ErrorKind::usage,
         "[target] vocab_size = {}: {} has the id {}{}, which needs {} rows. Keep as many, or name "
         "the folder of the smaller tokenizer with target.reference.",
         vocab, largest->file, largest->id,
         largest->token.empty() ? "" : fmt::format(" ({})", json_quoted(largest->token)),
         largest->id + 1);
}

}  // namespace reshard
