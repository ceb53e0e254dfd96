#pragma once

#include <string_view>

namespace reshard::hdf5 {

// Root attributes of our containers besides those that every one has.
inline constexpr std::string_view names_key = "names";  ///< logical_names or stored_names
inline constexpr std::string_view logical_names = "logical";
inline constexpr std::string_view stored_names = "stored";
inline constexpr std::string_view map_key = "map";    ///< of the family; "" for none
inline constexpr std::string_view part_key = "part";  ///< from 1
inline constexpr std::string_view software_version_key = "softwareVersion";  // as openPMD calls it
inline constexpr std::string_view parts_key = "parts";
inline constexpr std::string_view vocab_key =
    "vocab";  ///< rows that mean something; logical names alone
inline constexpr std::string_view prediction_layers_key =
    "prediction_layers";  ///< logical names alone
inline constexpr std::string_view slots_key =
    "slots";  ///< of optimizer state, with a space between; only where there is any

/// Objects that describe the model: Hugging Face's and Megatron's own words.
inline constexpr std::string_view args_name = "args.json";
/// What the run says beside its optimizer state: what common.pt of torch_dist is.
inline constexpr std::string_view common_name = "common.pt";
constexpr bool is_description(std::string_view object) {
  return object == "config.json" || object == args_name;
}

inline constexpr std::string_view single_file_name = "model.h5";
inline constexpr std::string_view index_name = "model.h5.index.json";

}  // namespace reshard::hdf5
